"""Something that happens again and again, by the clock, until it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Interval:
    """Calls a function every so many seconds, in a thread of its own, from now on.

    Args:
        seconds: Between two calls.
        call: What to call; a call that takes longer delays the next.
    """

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
