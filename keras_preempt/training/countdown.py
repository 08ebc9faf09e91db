"""A thread that calls when the time has come, by a time that may move while it waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Countdown:
    """Waits for a moment, and calls.

    Args:
        changed: Guards what `due` looks at; notified whenever that changes.
        due: Returns when to call by `clock`, None for never. Asked with the lock held.
        call: Called without the lock; it must make `due` return another moment.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        changed: threading.Condition,
        due: Callable[[], float | None],
        call: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._changed = changed
        self._due = due
        self._call = call
        self._clock = clock
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread, unless it runs. Called with the lock held."""
        if self._thread is None and not self._stopped:
            self._thread = threading.Thread(target=self._run, name="keras_preempt-countdown", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread. Can be called twice."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
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
