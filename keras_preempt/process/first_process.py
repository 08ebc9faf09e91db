"""Python as process 1 of a container, to which the kernel hands no signal that it has no handler for."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType


def hear_sigterm() -> None:
    """Makes SIGTERM end this process even if it is process 1, unless the program handles the signal.

    Without a handler it would train until it is killed, and stopping a container would take its whole grace period.
    """
    if os.getpid() != 1 or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)
        os.register_at_fork(after_in_child=_leave_to_the_kernel)


def end(number: int, frame: FrameType | None) -> None:
    """Ends the process as the signal's default action would; a container's status is then the same."""
    os._exit(128 + number)


def _leave_to_the_kernel() -> None:
    if signal.getsignal(signal.SIGTERM) is end:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
