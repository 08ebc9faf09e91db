"""Shows the progress of long operations: a bar on a terminal, a log line every few seconds elsewhere.

An operation that is over within a moment shows nothing. There is no thread here: a step that hangs shows no progress.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from keras_preempt.process import log

logger = logging.getLogger("keras_preempt")

PATIENCE = 3.0
"""Seconds that pass before anything is shown."""

REDRAW = 0.1
"""Seconds between two pictures of a bar."""

INTERVAL = 10.0
"""Seconds between two lines where there is no terminal."""

MIB = 1 << 20

_NEVER = float("inf")

Step = Callable[..., None]
"""Called from any thread with how much was done since the last call, by default 1."""


def progress(
    task: str,
    total: int,
    unit: str,
    *,
    scale: int = 1,
    clock: Callable[[], float] = time.monotonic,
    console: Console | None = None,
) -> AbstractContextManager[Step]:
    """Shows the progress of the block in which a `task` such as "Replaying the input" is done.

    Yields a function to call after each piece, with how much of `total` was done since the last call. A negative number
    takes back what has to be done again. Several threads may call it at once. `scale` of what is counted make one
    `unit`, such as 2**20 bytes a MiB. A bar is drawn on `console`, by default standard error, if that is a terminal.
    """
    return _Shown(task, total, unit, scale, clock, console)


def transfer(task: str, total: int) -> AbstractContextManager[Step]:
    """Shows in MiB how many of `total` bytes were transferred; see `progress`."""
    return progress(task, total, "MiB", scale=MIB)


class InBackground:
    """Shows the progress of an operation in another thread, but only while this thread waits for it."""

    def __init__(self) -> None:
        self._waited_for = False
        self._shown: _Shown | None = None

    def transfer(self, task: str, total: int) -> AbstractContextManager[Step]:
        """Like `transfer`; called in the thread that works."""
        shown = _Shown(task, total, "MiB", MIB, patience=_NEVER)
        # Set before `_waited_for` is read, as `waited_for` sets that before it reads this: one of them sees the other.
        self._shown = shown
        if self._waited_for:
            shown.reveal()
        return shown

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        self._waited_for = True
        if self._shown is not None:
            self._shown.reveal()
        try:
            yield
        finally:
            self._waited_for = False
            if self._shown is not None:
                self._shown.end()


class _Shown(AbstractContextManager[Step]):
    def __init__(
        self,
        task: str,
        total: int,
        unit: str,
        scale: int,
        clock: Callable[[], float] = time.monotonic,
        console: Console | None = None,
        patience: float | None = None,
    ) -> None:
        self._task, self._total, self._unit, self._scale = task, total, unit, scale
        self._clock, self._console = clock, console or Console(file=sys.stderr)
        self._digits = 1 if scale > 1 and total < 10 * scale else 0
        self._began = clock()
        self._next = self._began + (PATIENCE if patience is None else patience)
        self._ended = False
        self._done = 0
        self._bar: Progress | None = None
        # Several threads count, and there is one bar.
        self._lock = threading.Lock()

    def __enter__(self) -> Step:
        return self.step

    def __exit__(self, *error: object) -> None:
        self.end()

    def step(self, count: int = 1) -> None:
        with self._lock:
            self._done += count
            now = self._clock()
            if now < self._next:
                return
            done, total = (
                f"{each / self._scale:.{self._digits}f}"
                for each in (min(self._done, self._total), self._total)
            )
            so_far = f"{done} of {total} {self._unit}"
            if self._console.is_terminal:
                self._next = now + REDRAW
                self._draw(so_far)
                return
            self._next = now + INTERVAL
            seconds = now - self._began
            left = seconds / self._done * (self._total - self._done) if self._done > 0 else 0.0
            logger.info("%s: %s in %.0f s, about %.0f s left.", self._task, so_far, seconds, max(0.0, left))

    def reveal(self) -> None:
        """Shows what was hidden, if it is not over within a moment from now."""
        with self._lock:
            if not self._ended:
                self._next = self._clock() + PATIENCE

    def _draw(self, so_far: str) -> None:
        if self._bar is None:
            count = TextColumn("{task.fields[count]}")
            columns = (TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn())
            # Drawn where it is counted: a bar that draws itself needs a thread.
            self._bar = Progress(*columns, console=self._console, transient=True, auto_refresh=False)
            log.leave_bar(sys.stderr)
            self._bar.add_task(self._task, total=self._total, count=so_far)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=self._done, count=so_far, refresh=True)

    def end(self) -> None:
        with self._lock:
            # A thread that was abandoned may still call `step`, which must show nothing any more.
            self._next, self._ended = _NEVER, True
            if self._bar is not None:
                self._bar.stop()
