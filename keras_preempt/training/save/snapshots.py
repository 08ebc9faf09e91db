"""Takes snapshots of the training input at boundaries, when they are due; or says what a resume without them costs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.state.inputs import drawn_again_at_most
from keras_preempt.training.save.schedule import NEVER
from keras_preempt.training.save.snapshot_schedule import SnapshotSchedule

logger = logging.getLogger("keras_preempt")


_STEPS, _SECONDS = 16, 5.0
"""After how many steps and seconds it is known how fast training is; the first step is not among them."""

_NEWS = 60.0
"""Seconds of replay that a user is told about beforehand."""


class ReplayCost:
    """Finds out from the first steps how long a replay of the input will take, and says so once.

    Args:
        at_most: Returns how many batches will be drawn again at most, and when; None for few.
    """

    def __init__(self, at_most: Callable[[], tuple[int, str] | None]) -> None:
        self._at_most = at_most
        self._first: tuple[float, int] | None = None
        self._is_warm = False

    def boundary(self, entered: int, now: float, steps: int) -> int:
        """Looks at a boundary of training; returns the number of the one to look at next.

        Args:
            entered: Its number.
            now: When it is, in monotonic seconds.
            steps: Steps between two boundaries.
        """
        if self._first is None:
            self._first = now, entered  # From here: the first step is traced and compiled.
            return entered + 1
        began, first = self._first
        if not self._is_warm:
            self._first, self._is_warm = (now, entered), True
            return entered + _STEPS
        if now - began < _SECONDS:
            return entered + (entered - first)
        batches, when = self._at_most() or (0, "")
        seconds = (now - began) / (entered - first) / steps * batches
        if seconds >= _NEWS:
            logger.info(
                "A resume %s will replay %s batches of input. That takes at most about %s, the time of training on "
                "them.",
                when,
                f"{batches:,}",
                spoken(seconds),
            )
        return NEVER


def spoken(seconds: float) -> str:
    """Returns a time in one unit, for a message."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


class SnapshotTaker:
    """Takes the snapshots of one fit, in its main thread.

    Args:
        feed: The training input.
        epochs: Epochs of the fit.
        tells: Whether this process says what a resume costs.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self, feed: InputFeed, epochs: int, *, tells: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._feed = feed
        self._replay = ReplayCost(lambda: drawn_again_at_most(feed, epochs))
        self._tells = tells
        self._clock = clock
        expected = 0.0 if feed.snapshots is None else feed.snapshots.expected
        self._schedule = SnapshotSchedule(expected)
        self._next = NEVER if feed.snapshots is None and not tells else 0

    @property
    def held(self) -> int:
        """Bytes that a save writes of them."""
        return 0 if self._feed.snapshots is None else int(self._feed.snapshots.held)

    def boundary(self, entered: int) -> float:
        """Looks whether a snapshot is due at a boundary of training that was looked at, and takes it.

        Args:
            entered: The number of the boundary.

        Returns:
            How many seconds that took.
        """
        if self._next == NEVER:
            return 0.0
        began = self._clock()
        if self._feed.snapshots is None or self._feed.snapshots.given_up:
            self._next = (
                self._replay.boundary(entered, began, self._feed.steps_per_execution)
                if self._tells
                else NEVER
            )
            return 0.0
        self._schedule.trains(began)
        seconds = 0.0
        if self._schedule.left <= 0:
            seconds = self._take(began)
        self._next = (
            NEVER if self._feed.snapshots.given_up else entered + self._schedule.boundaries_left(entered)
        )
        return seconds

    def _take(self, began: float) -> float:
        snapshots = self._feed.snapshots
        snapshots.take(int(self._feed.position(pending=True)["batches"]))
        now = self._clock()
        self._schedule.took(now - began, now)
        if snapshots.given_up:
            logger.info(
                "No more snapshots of the input are taken: %s. A resume draws its batches again.",
                snapshots.given_up,
            )
        return now - began

    def pauses(self) -> None:
        """Training pauses, as for a validation or at the end of an epoch."""
        if self._next != NEVER:
            self._schedule.pauses(self._clock())

    def next_boundary(self) -> int:
        """The number of the boundary at which to look next."""
        return self._next
