"""What the command line makes of the descriptors and signals that it was started with."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["cleaning_up_on_signals", "open_standard_descriptors"]

_LEAVING = (signal.SIGTERM, signal.SIGHUP)


def open_standard_descriptors() -> None:
    """Opens what of 0, 1 and 2 is closed (``>&-``), so that no file that is opened later takes that number.

    Whatever writes to standard output, such as a library in C, would write into that file.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # It gets the lowest number that is free: this one.


@contextlib.contextmanager
def cleaning_up_on_signals() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP an exit like any other, with 128 + n, so that temporary directories are removed.

    A signal that is ignored (nohup) stays ignored, and what somebody else handles is left to them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [number for number in _LEAVING if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in ours:
            if signal.getsignal(number) is _leave:
                signal.signal(number, signal.SIG_DFL)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
