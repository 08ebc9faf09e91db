"""Notices that come as signals: SIGTERM on Kubernetes, Slurm, SageMaker, and whatever the user names.

A Python signal handler runs only when the main thread is back in Python: seconds late while a step runs.
`signal.set_wakeup_fd` is served at once, by the C-level handler, in whatever thread the kernel picked. So
the Python handler only says that a notice is coming, and a listener thread reads the wake-up pipe. Nothing
is ever sent over a network from a signal handler.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from types import FrameType

from keras_preempt.notices.notice import Notice

logger = logging.getLogger("keras_preempt")

_STOP = b"\0"  # No signal has the number 0.


def parse_signals(names: Iterable[str | int | signal.Signals]) -> tuple[signal.Signals, ...]:
    """Turns names such as "SIGTERM", "TERM" or "SIGUSR1" into signals.

    Raises:
        ValueError: A name is not a signal, cannot be caught, or appears twice.
    """
    if isinstance(names, str):
        names = (names,)
    found: list[signal.Signals] = []
    for name in names:
        try:
            if isinstance(name, str):
                wanted = name.upper()
                number = signal.Signals[wanted if wanted.startswith("SIG") else "SIG" + wanted]
            else:
                number = signal.Signals(name)
        except (KeyError, ValueError):
            raise ValueError(
                f"Expected names of signals, such as 'SIGTERM' or 'SIGUSR1'. Received: {name!r}."
            ) from None
        if number in (signal.SIGKILL, signal.SIGSTOP):
            raise ValueError(
                f"Expected signals that a process can catch. Received: {number.name}, which none can. "
                "Name the signal that your platform sends before it kills, such as 'SIGTERM'."
            )
        if number in found:
            raise ValueError(f"Expected each signal once. Received: {number.name} twice.")
        found.append(number)
    return tuple(found)


_listening: weakref.WeakSet[SignalNotices] = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    """In a forked child (a data loader's worker, say): a signal to it is its own affair, and ends it as ever.

    It shares the wake-up socket with its parent, which would take the child's signal for its own.
    """
    for source in list(_listening):
        source._earlier_fd = -1
        source._put_handlers_back()


os.register_at_fork(after_in_child=_leave_to_the_parent)


class SignalNotices:
    """Listens for signals, from `start` until `stop`.

    Args:
        signals: The signals that mean that this process will be ended.
        on_notice: Called in the listener thread with each notice.
        on_signal: Called in the main thread, between two of its instructions, maybe before and maybe after
            the notice. It must not wait for anything: a signal handler runs it.

    Example:
        >>> source = SignalNotices(parse_signals(["SIGTERM"]), print, lambda: None)
        >>> source.start()
        >>> source.stop()
    """

    def __init__(
        self,
        signals: Iterable[signal.Signals],
        on_notice: Callable[[Notice], None],
        on_signal: Callable[[], None],
    ) -> None:
        self._signals = tuple(signals)
        self._on_notice = on_notice
        self._on_signal = on_signal
        self._earlier: dict[signal.Signals, object] = {}
        self._earlier_fd = -1
        self._wakeup_fd = -1
        self._thread: threading.Thread | None = None
        self._reader: socket.socket | None = None
        self._writer: socket.socket | None = None
        self._owner = os.getpid()
        self._stopped = False

    @staticmethod
    def possible() -> bool:
        """Whether this thread may set signal handlers: only the main thread may."""
        return threading.current_thread() is threading.main_thread()

    def start(self) -> None:
        """Replaces the signals' handlers and starts the listener thread. Main thread only."""
        if not self._signals:
            return
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._wakeup_fd = self._writer.fileno()
        self._earlier_fd = signal.set_wakeup_fd(self._wakeup_fd, warn_on_full_buffer=False)
        for number in self._signals:
            self._earlier[number] = signal.signal(number, self._handle)
        self._owner = os.getpid()
        _listening.add(self)
        self._thread = threading.Thread(target=self._listen, name="keras_preempt-signals", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Puts the earlier handlers back and ends the thread. Can be called twice.

        From a thread other than the main one, which may not touch handlers, the next signal does that, and
        goes on to the earlier handler; no notice comes of it.
        """
        self._stopped = True
        if self._thread is None or os.getpid() != self._owner or not self.possible():
            return
        assert self._writer is not None
        assert self._reader is not None
        self._put_handlers_back()
        self._writer.setblocking(True)
        self._writer.send(_STOP)
        self._thread.join(timeout=10)
        self._thread = None
        self._reader.close()
        self._writer.close()

    def _put_handlers_back(self) -> None:
        # A fit that was left by an exception ends when the exception is forgotten, and another may have begun by then:
        # that one inherits what this one has found.
        _listening.discard(self)
        later = list(_listening)
        for number, handler in self._earlier.items():
            heirs = [source for source in later if source._earlier.get(number) == self._handle]
            if heirs:
                heirs[0]._earlier[number] = handler
                continue
            # A handler that was not set from Python (TensorFlow's) reads as None and cannot be put back
            # from here; the default action is what a process without TensorFlow would have.
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)  # type: ignore[arg-type]
        heirs = [source for source in later if source._earlier_fd == self._wakeup_fd]
        if heirs:
            heirs[0]._earlier_fd = self._earlier_fd
        else:
            signal.set_wakeup_fd(self._earlier_fd, warn_on_full_buffer=False)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._stopped:
            self._put_handlers_back()
            signal.raise_signal(number)
            return
        self._on_signal()

    def _listen(self) -> None:
        assert self._reader is not None
        wanted = {int(number): number for number in self._signals}
        while True:
            data = self._reader.recv(64)
            for byte in data:
                if byte in wanted and not self._stopped:
                    self._on_notice(Notice("signal", wanted[byte].name, time.time()))
                elif byte and byte not in wanted and self._earlier_fd >= 0:
                    self._pass_on(byte)
            if not data or _STOP in data:
                return

    def _pass_on(self, byte: int) -> None:
        """Another library (asyncio, say) was woken through its own descriptor before: it still is."""
        try:
            os.write(self._earlier_fd, bytes([byte]))
        except OSError as error:
            logger.debug("The earlier wake-up descriptor is gone: %s", error)
