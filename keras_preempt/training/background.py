"""Saves that go on while training does: one at a time, in a thread that its owner ends."""

from __future__ import annotations

import threading
from collections.abc import Callable

from keras_preempt.agreement.alignment import Position
from keras_preempt.training.saver import Saved

WAIT_LIMIT = 3600.0
"""Seconds; every step of a save has its own, much shorter limit."""


class BackgroundSave:
    """The save in flight, if there is one.

    Attributes:
        last: What came of the save that ended last; None before the first.
        position: What the save that began last holds; None before the first.
    """

    def __init__(self) -> None:
        self.last: Saved | None = None
        self.position: Position | None = None
        self._thread: threading.Thread | None = None
        self._cancelled = threading.Event()
        self._error: BaseException | None = None

    def start(self, position: Position, write: Callable[[Callable[[], bool]], Saved]) -> None:
        """Begins a save, after the one in flight has ended.

        Args:
            position: What it holds.
            write: Does it; is given a function that says whether to give up.
        """
        self.wait()
        self.position = position
        self._cancelled.clear()

        def run() -> None:
            try:
                self.last = write(self._cancelled.is_set)
            except BaseException as error:  # Raised again in the main thread, by `wait`.
                self._error = error

        self._thread = threading.Thread(target=run, name="keras_preempt-save", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a save is in flight."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> Saved | None:
        """Waits for the save in flight; returns what came of the last one.

        Raises:
            BaseException: What the thread raised.
        """
        if self._thread is not None:
            self._thread.join(WAIT_LIMIT)
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self.last

    def cancel(self) -> None:
        """Makes the save in flight give up between two files, and waits for it."""
        self._cancelled.set()
        self.wait()
