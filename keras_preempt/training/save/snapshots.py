"""Takes snapshots of the training input at boundaries, when they are due; or says what a resume without them costs."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Callable

from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.state.inputs import drawn_again_at_most
from keras_preempt.training.save.schedule import NEVER

logger = logging.getLogger("keras_preempt")

SHARE = 0.01
"""The most of the time of training that snapshots may take."""

WORTH = 0.25
"""Seconds of training whose batches are always drawn again: a restart does not notice less."""

_RECENT = 5


class SnapshotSchedule:
    """Decides after which stretch of training a snapshot is taken.

    A snapshot is due when the stretch since the last one is worth it, and when what it is expected to cost is at most
    `SHARE` of that stretch. If earlier ones took longer than expected, it has to wait until all of them together are
    no more than `SHARE` of the training so far. So a restart draws at most the batches of `WORTH` seconds again, or of
    1 / `SHARE` times what a snapshot costs.

    Moments are given, in monotonic seconds. `expected` are the seconds that the first snapshot is expected to take.
    """

    def __init__(self, expected: float) -> None:
        self._expected = expected
        self._costs: deque[float] = deque(maxlen=_RECENT)
        self._spent = self._trained = self._stretch = 0.0
        self._since: float | None = None
        self._looked = 0.0, 0  # When, in seconds of training, and at which boundary.
        self._furthest = 1

    @property
    def cost(self) -> float:
        """Seconds that the next snapshot is expected to take."""
        return statistics.median(self._costs) if self._costs else self._expected

    def trains(self, now: float) -> None:
        """Training goes on, or has gone on until now."""
        if self._since is not None:
            self._trained += now - self._since
            self._stretch += now - self._since
        self._since = now

    def pauses(self, now: float) -> None:
        """Training has ended for a while, as for a validation: what comes until it goes on does not count."""
        if self._since is not None:
            self.trains(now)
            self._since = None

    @property
    def left(self) -> float:
        """Seconds of training until a snapshot is due; 0 or less if it is."""
        wanted = max(WORTH, self.cost / SHARE) - self._stretch
        return max(wanted, (self._spent + self.cost) / SHARE - self._trained)

    def took(self, seconds: float, now: float) -> None:
        """A snapshot was taken, or tried, and took this long until now."""
        self._costs.append(seconds)
        self._spent += seconds
        self._stretch = 0.0
        self._since = now

    def boundaries_left(self, entered: int) -> int:
        """Returns after how many boundaries to look again, at least 1, at the one with this number.

        The pace of the first steps tells little, so that the first looks come early: each may be twice as far away as
        the one before.
        """
        (trained, before), self._looked = self._looked, (self._trained, entered)
        if entered <= before or self._trained <= trained:
            return 1
        self._furthest *= 2
        per_boundary = (self._trained - trained) / (entered - before)
        return max(1, min(self._furthest, math.ceil(self.left / per_boundary)))


_STEPS, _SECONDS = 16, 5.0
"""After how many steps and seconds it is known how fast training is; the first step is not among them."""

_NEWS = 60.0
"""Seconds of replay that a user is told about beforehand."""


class ReplayCost:
    """Finds out from the first steps how long a replay of the input will take, and says so once.

    `at_most` returns how many batches will be drawn again at most, and when; None for few.
    """

    def __init__(self, at_most: Callable[[], tuple[int, str] | None]) -> None:
        self._at_most = at_most
        self._first: tuple[float, int] | None = None
        self._is_warm = False

    def boundary(self, entered: int, now: float, steps: int) -> int:
        """Looks at a boundary of training; returns the number of the next one to look at. `steps` lie between two."""
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
    """Takes the snapshots of one fit of so many epochs, in its main thread; `tells` what a resume costs."""

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
        """Takes a snapshot if one is due at the boundary with that number; returns how many seconds that took."""
        if self._next == NEVER:
            return 0.0
        began, snapshots = self._clock(), self._feed.snapshots
        if snapshots is None or snapshots.given_up:
            steps = self._feed.steps_per_execution
            self._next = self._replay.boundary(entered, began, steps) if self._tells else NEVER
            return 0.0
        self._schedule.trains(began)
        seconds = 0.0
        if self._schedule.left <= 0:
            snapshots.take(int(self._feed.position(pending=True)["batches"]))
            now = self._clock()
            seconds = now - began
            self._schedule.took(seconds, now)
            if snapshots.given_up:
                logger.info(
                    "No more snapshots of the input are taken: %s. A resume draws its batches again.",
                    snapshots.given_up,
                )
        again = self._schedule.boundaries_left(entered)
        self._next = NEVER if snapshots.given_up else entered + again
        return seconds

    def pauses(self) -> None:
        """Training pauses, as for a validation or at the end of an epoch."""
        if self._next != NEVER:
            self._schedule.pauses(self._clock())

    def next_boundary(self) -> int:
        """The number of the boundary at which to look next."""
        return self._next
