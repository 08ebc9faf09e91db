"""Shows how far something long has come: a bar on a terminal, a log line every few seconds elsewhere.

What is over within a moment shows nothing at all. Nothing here has a thread: a step that hangs shows no progress.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

logger = logging.getLogger("keras_preempt")

PATIENCE = 3.0
"""Seconds that pass before anything is shown."""

INTERVAL = 10.0
"""Seconds between two lines where there is no terminal."""

Step = Callable[..., None]
"""Called with how many units were done since it was called last; 1 if it is called with nothing."""


@contextmanager
def progress(
    task: str,
    total: int,
    unit: str,
    *,
    clock: Callable[[], float] = time.monotonic,
    console: Console | None = None,
) -> Iterator[Step]:
    """Shows the progress of what is done inside the block.

    Args:
        task: What is done, such as "Replaying the input".
        total: How many units there are.
        unit: Their name, in the plural.
        clock: Seconds, from any beginning.
        console: Where a bar is drawn if it is a terminal; None for standard error.

    Yields:
        A function to call after each unit, or with the number of units done since the last call.

    Example:
        >>> with progress("Replaying the input", total=len(batches), unit="batches") as step:
        ...     for batch in batches:
        ...         draw(batch)
        ...         step()
    """
    shown = _Shown(task, total, unit, clock, console or Console(file=sys.stderr))
    try:
        yield shown.step
    finally:
        shown.end()


class _Shown:
    def __init__(
        self, task: str, total: int, unit: str, clock: Callable[[], float], console: Console
    ) -> None:
        self._task, self._total, self._unit = task, total, unit
        self._clock, self._console = clock, console
        self._began = clock()
        self._next = self._began + PATIENCE
        self._done = 0
        self._bar: Progress | None = None

    def step(self, units: int = 1) -> None:
        self._done += units
        now = self._clock()
        if now < self._next:
            return
        if self._console.is_terminal:
            self._draw()
            return
        self._next = now + INTERVAL
        seconds = now - self._began
        left = seconds / self._done * (self._total - self._done) if self._done else 0.0
        logger.info(
            "%s: %d of %d %s in %.0f s, about %.0f s left.",
            self._task,
            self._done,
            self._total,
            self._unit,
            seconds,
            max(0.0, left),
        )

    def _draw(self) -> None:
        if self._bar is None:
            count = TextColumn(f"{{task.completed:.0f}} of {{task.total:.0f}} {self._unit}")
            columns = (TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn())
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.add_task(self._task, total=self._total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=self._done)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
