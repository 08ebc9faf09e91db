"""Notices that come as signals: SIGTERM on Kubernetes, Slurm and SageMaker, and whatever the user names.

A Python signal handler runs only when the main thread is back in Python: seconds late while a step runs.
`signal.set_wakeup_fd` is written to at once, by the C-level handler, in whatever thread the kernel picked. So
the Python handler only says that a notice is coming, and a listener thread reads the wake-up pipe. Nothing
is ever sent over a network from a signal handler.

A process has one wake-up descriptor and one handler for each signal, and other code may take either: asyncio takes
both. Either of them is enough to hear a signal. The handler checks whose the descriptor is, and tells the listener
itself if it is not ours. The listener checks the handlers once a second; if they are not ours any more, it asks the
main thread to call `look_again`, which takes the descriptor back. Other code still receives what it received before.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import operator
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from types import FrameType

from keras_preempt.notices import Notice, OnNotice
from keras_preempt.notices.interrupt import Interrupts
from keras_preempt.process import first_process

logger = logging.getLogger("keras_preempt")

_STOP = b"\0"  # No signal has the number 0.
_BY_HANDLER = 0x80  # Added to a signal's number where the Python handler had to tell of it; those end at 64.

_DESCRIPTOR_TAKEN = (
    "Other code has taken the descriptor through which Python tells of signals (asyncio does that in "
    "add_signal_handler). It is taken back, and what comes for that code is passed on."
)

LOOK_SECONDS = 1.0  # Seconds between two checks whether the handlers are still ours.


def parse_signals(names: Iterable[str | int | signal.Signals]) -> tuple[signal.Signals, ...]:
    """Turns "SIGTERM", "TERM" or 15 into signals; ValueError for others, those that none can catch, and repetitions."""
    if isinstance(names, str):
        names = (names,)
    found: list[signal.Signals] = []
    for name in names:
        try:
            if isinstance(name, str):
                wanted = name.upper()
                number = signal.Signals[wanted if wanted.startswith("SIG") else "SIG" + wanted]
            elif isinstance(name, bool):
                raise ValueError
            else:
                number = signal.Signals(operator.index(name))
        except (KeyError, ValueError, TypeError):
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


_KILLS = (signal.SIG_DFL, None, first_process.end)
"""Earlier handlers that end the process; None is TensorFlow's."""

_listening: weakref.WeakSet[SignalNotices] = weakref.WeakSet()


def _keep_children_apart() -> None:
    """Holds the signals back around every fork from now on, until the child has handlers of its own."""
    held = threading.local()  # The mask is a thread's own, and the thread that forks is the child's only one.

    def hold() -> None:
        ours = {number for source in list(_listening) for number in source._signals}
        held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ours)

    def let_go() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, held.mask)

    def begin_child() -> None:
        # A signal to a child, such as a data loader's worker, ends it, as without these sources. It shares the wake-up
        # socket with its parent, which would take the child's signal for its own.
        try:
            for source in list(_listening):
                source._earlier_fd, source._earlier_file = -1, None
                source._put_handlers_back(child=True)
        finally:
            let_go()

    os.register_at_fork(before=hold, after_in_parent=let_go, after_in_child=begin_child)


_keep_children_apart()


class SignalNotices:
    """Listens for signals that mean that this process will be ended.

    `on_notice` is called in the listener thread with each notice, `on_signal` before or after that by the signal
    handler in the main thread, so it must not wait for anything. `on_replaced` is called in the listener thread, about
    once a second for as long as a handler is not ours: the main thread should then call `look_again` soon.
    `interrupts` are told of SIGINT, unless that is one of `signals`, for as long as no other code takes it.
    """

    def __init__(
        self,
        signals: Iterable[signal.Signals],
        on_notice: OnNotice,
        on_signal: Callable[[], None],
        on_replaced: Callable[[], None] = lambda: None,
        interrupts: Interrupts | None = None,
    ) -> None:
        self._interrupts = {signal.SIGINT: interrupts} if interrupts else {}
        self._signals: tuple[signal.Signals, ...] = (*signals, *self._interrupts)
        self._on_notice = on_notice
        self._on_signal = on_signal
        self._on_replaced = on_replaced
        self._earlier: dict[signal.Signals, object] = {}
        self._earlier_fd = -1
        self._earlier_file: tuple[int, int] | None = None
        self._warned: set[str] = set()
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
        """Main thread only."""
        if not self._signals:
            return
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._wakeup_fd = self._writer.fileno()
        self._take_descriptor()
        for number in self._signals:
            self._earlier[number] = signal.signal(number, self._handle)
        self._owner = os.getpid()
        _listening.add(self)
        self._thread = threading.Thread(target=self._listen, name="keras_preempt-signals", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Puts the earlier handlers back and ends the thread. Can be called twice.

        Only the main thread may set handlers. After a stop from another one, the next signal puts them back and is
        raised again for the earlier handler; it gives no notice.
        """
        self._stopped = True
        if self._thread is None or not self._may_set_handlers():
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

    def leave_with(self, status: int) -> None:
        """From now on, also after `stop`, signals that would kill end the process with `status`. Main thread only."""
        kills = [number for number, earlier in self._earlier.items() if earlier in _KILLS]
        if kills and self._may_set_handlers():
            self._earlier.update(dict.fromkeys(kills, EndsWith(status, kills)))

    def look_again(self) -> None:
        """Makes sure that signals still arrive here, whatever other code has done since. Main thread only.

        A Python handler that other code has set stays: the signal is heard through the descriptor all the same. The
        system's default action and SIG_IGN are replaced.
        """
        if self._thread is None or self._stopped or not self._may_set_handlers():
            return
        taken = self._take_descriptor()
        for number in self._replaced():
            found = signal.getsignal(number)
            if found in (signal.SIG_DFL, signal.SIG_IGN):
                self._earlier[number] = found
                signal.signal(number, self._handle)
                self._warn_once(f"{number.name} was set back to {found!r}, unheard; so it is taken again.")
            else:
                self._warn_once(
                    f"{number.name} has got another handler, {found!r}. It is heard here all the same."
                )
        if taken:
            self._warn_once(_DESCRIPTOR_TAKEN)

    def _may_set_handlers(self) -> bool:
        """Whether this is the main thread, and not of a forked child."""
        return os.getpid() == self._owner and self.possible()

    def _replaced(self) -> list[signal.Signals]:
        """The signals whose handler is not ours any more, and should be."""
        kept = (number for number in self._signals if number not in self._interrupts)
        return [number for number in kept if signal.getsignal(number) != self._handle]

    def _take_descriptor(self) -> bool:
        """Makes the wake-up descriptor ours; returns whether it was not. Takes no lock."""
        found = signal.set_wakeup_fd(self._wakeup_fd, warn_on_full_buffer=False)
        if found == self._wakeup_fd:
            return False
        self._earlier_fd, self._earlier_file = found, _file_of(found)
        return True

    def _still_earlier_fd(self) -> int:
        """The earlier descriptor; -1 if its owner has closed it, and it may be another file's by now."""
        return self._earlier_fd if _file_of(self._earlier_fd) == self._earlier_file else -1

    def _warn_once(self, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("%s", what)

    def _put_handlers_back(self, *, child: bool = False) -> None:
        # A fit that an exception left ends when the exception is deleted. Another may have begun by then: it inherits
        # the handlers that this one found.
        _listening.discard(self)
        later = list(_listening)
        for number, handler in self._earlier.items():
            heirs = [source for source in later if source._earlier.get(number) == self._handle]
            if heirs:
                heirs[0]._earlier[number] = handler
                continue
            if signal.getsignal(number) != self._handle:
                continue  # Other code has set another one since.
            if child and number in self._interrupts:
                # A terminal sends it to the children as well. Those that read the data are needed until the state is
                # saved, and end with this process.
                handler = signal.SIG_IGN
            # A handler that was not set from Python (TensorFlow's) reads as None and cannot be put back
            # from here; the default action is what a process without TensorFlow would have.
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)  # type: ignore[arg-type]
        heirs = [source for source in later if source._earlier_fd == self._wakeup_fd]
        if heirs:
            heirs[0]._earlier_fd, heirs[0]._earlier_file = self._earlier_fd, self._earlier_file
        else:
            found = signal.set_wakeup_fd(self._still_earlier_fd(), warn_on_full_buffer=False)
            if found != self._wakeup_fd:
                signal.set_wakeup_fd(found, warn_on_full_buffer=False)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._stopped:
            self._put_handlers_back()
            signal.raise_signal(number)
            return
        taken = self._take_descriptor()
        interrupts = self._interrupts.get(signal.Signals(number))
        if interrupts is not None:
            interrupts.announced()
        else:
            self._on_signal()
        if taken and self._writer is not None:
            with contextlib.suppress(OSError):  # The listener has enough to read.
                self._writer.send(bytes([number | _BY_HANDLER]))

    def _listen(self) -> None:
        assert self._reader is not None
        self._reader.settimeout(LOOK_SECONDS)
        while True:
            try:
                data = self._reader.recv(64)
            except TimeoutError:
                if not self._stopped and self._replaced():
                    self._on_replaced()
                continue
            for byte in data:
                self._hear(byte)
            if not data or _STOP in data:
                return

    def _hear(self, byte: int) -> None:
        heard = byte & ~_BY_HANDLER
        number = next((each for each in self._signals if each == heard), None)
        if number in self._interrupts and signal.getsignal(number) != self._handle:
            number = None  # Other code has taken it, and decides what it means.
        # Decided now: the notice may stop this.
        for_others = byte != 0 and (number is None or number in self._replaced())
        if number is not None and not self._stopped:
            if byte & _BY_HANDLER:
                self._warn_once(_DESCRIPTOR_TAKEN)
            try:
                if number in self._interrupts:
                    self._interrupts[number].heard()
                else:
                    self._on_notice(Notice("signal", number.name, time.time()))
            except Exception:  # Whatever it is, the next signal must be heard.
                logger.exception("%s was heard, and could not be acted on.", number.name)
        if for_others and (descriptor := self._still_earlier_fd()) >= 0:
            # Wakes the library (asyncio, say) whose descriptor was there before, as it was woken before.
            try:
                os.write(descriptor, bytes([byte]))
            except OSError as error:
                logger.debug("The earlier wake-up descriptor is gone: %s", error)


class EndsWith:
    """A signal handler that ends the process at once, as the default action would, but with a status of our own.

    Schedulers send SIGTERM more than once, and TensorFlow takes a second or more to end. A process that has saved and
    is then killed by the second signal would look like one that has not. `signals` are those that it is set for.
    """

    def __init__(self, status: int, signals: Iterable[signal.Signals]) -> None:
        self._status = status
        self._signals = tuple(signals)
        # Python removes its handlers long before the process ends, but what is ignored stays ignored. Not earlier: the
        # program may catch SystemExit and continue.
        atexit.register(self._ignore)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        os._exit(self._status)

    def _ignore(self) -> None:
        for number in self._signals:
            if signal.getsignal(number) is self:
                signal.signal(number, signal.SIG_IGN)


def _file_of(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino
