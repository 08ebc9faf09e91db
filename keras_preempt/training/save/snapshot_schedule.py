"""When the next snapshot of the input is due: by what one costs, and by how long a stretch would be drawn again.

Pure: moments are given, in monotonic seconds.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

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

    Args:
        expected: Seconds that the first snapshot is expected to take.
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
        """Returns after how many boundaries to look again, at least 1.

        The pace of the first steps tells little, so that the first looks come early: each may be twice as far away as
        the one before.

        Args:
            entered: The number of the boundary that training is at.
        """
        (trained, before), self._looked = self._looked, (self._trained, entered)
        if entered <= before or self._trained <= trained:
            return 1
        self._furthest *= 2
        per_boundary = (self._trained - trained) / (entered - before)
        return max(1, min(self._furthest, math.ceil(self.left / per_boundary)))
