"""A signal that comes while the process is on its way out already, with a status that somebody reads."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Iterable
from types import FrameType

__all__ = ["EndsWith"]


class EndsWith:
    """A signal handler that ends the process at once, as the system's own action would, but with its status.

    Schedulers send SIGTERM more than once, and TensorFlow takes a second or more to end. Killed by such a second
    signal, a process that has saved would look like one that has not.

    Args:
        status: The exit status that is due.
        signals: Those that it is set for. While the interpreter ends they are ignored.
    """

    def __init__(self, status: int, signals: Iterable[signal.Signals]) -> None:
        self._status = status
        self._signals = tuple(signals)
        # Python gives its handlers back to the system long before it ends; what is ignored stays so. Whoever catches
        # SystemExit and goes on is not there yet.
        atexit.register(self._ignore)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Ends the process."""
        os._exit(self._status)

    def _ignore(self) -> None:
        for number in self._signals:
            if signal.getsignal(number) is self:
                signal.signal(number, signal.SIG_IGN)
