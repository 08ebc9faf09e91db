"""Threads that call a function by the clock: at a moment that may move, or again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Countdown:
    """Waits for a moment that may move, and calls, in a thread of its own, from now on.

    `due` returns when to call by `clock`, None for never; it is asked with the lock of `changed` held, and again when
    that is notified. `call` is called without the lock, and must make `due` return another moment.
    """

    def __init__(
        self,
        changed: threading.Condition,
        due: Callable[[], float | None],
        call: Callable[[], object],
        clock: Callable[[], float],
    ) -> None:
        self._changed = changed
        self._due = due
        self._call = call
        self._clock = clock
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="keras_preempt-countdown", daemon=True)
        self._thread.start()

    def look_again(self) -> None:
        """The moment may have changed."""
        with self._changed:
            self._changed.notify_all()

    def stop(self) -> None:
        """Ends the thread. Can be called twice."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=60)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopped:
                    at = self._due()
                    left = None if at is None else at - self._clock()
                    if left is not None and left <= 0:
                        break
                    # Not longer than a lock may wait.
                    self._changed.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
                if self._stopped:
                    return
            self._call()


class Interval:
    """Calls a function every so many seconds, in a thread of its own, from now on; a long call delays the next."""

    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        self._seconds = seconds
        self._call = call
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keras_preempt-interval", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread. Can be called twice."""
        self._stopped.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            self._call()
