"""How fast a fit moves and saves: what the grace countdown is calculated from.

Until a notice arrives, single steps are not measured. A boundary at which the main thread looks closer ends
a *stretch*, of many boundaries in an undisturbed epoch and of one while a notice stands; what counts is the
time of a stretch divided by its boundaries. So the pace is known roughly before a notice comes, and exactly
soon after. The few places of an epoch that are not steps and may take far longer, such as the beginning of its
input, are measured each time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from keras_preempt.agreement import grace

RECENT = 512
"""Stretches that count; the slowest of them is expected again."""

SAVE_RATE = 50e6
"""Bytes a second at which a save is expected to be written before one was measured."""

FIRST_SAVE = 0.25
"""Seconds that a save is expected to take at least before one was measured, however small it is."""

FIRST_ALIGNMENT = 0.25
"""Seconds that a round is expected to take before one was measured."""

_FEW = 3  # of saves, of rounds and of snapshots

_PAUSES = 9  # of three epochs: how they end, how the next one begins, how its validation begins


class Pace:
    """Measures one fit of one process: the main thread says where it is, other threads ask for the reserve.

    Attributes:
        to_save: Bytes of a whole checkpoint, as long as no save was measured.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stretches: deque[float] = deque(maxlen=RECENT)
        self._pauses: deque[float] = deque(maxlen=_PAUSES)
        self._snapshots: deque[float] = deque(maxlen=_FEW)
        self._saves: deque[float] = deque(maxlen=_FEW)
        self._rounds: deque[float] = deque(maxlen=_FEW)
        self._left: tuple[float, int] | None = None
        self._saving_since: float | None = None
        self.to_save = 0

    # -- The main thread --------------------------------------------------------------------------------

    def enter(self, entered: int) -> bool:
        """The main thread looks closer at the `entered`-th boundary; returns whether it was the slowest to come."""
        if self._left is None:
            return False
        began, number = self._left
        self._left = None
        if entered <= number:
            return False
        seconds = (self._clock() - began) / (entered - number)
        slowest = max(self._stretches, default=0.0)
        self._stretches.append(seconds)
        return seconds > slowest

    def leave(self, entered: int) -> None:
        """The main thread continues from that boundary; what it did there does not count."""
        self._left = (self._clock(), entered)

    def compiled(self) -> None:
        """The stretch that ends here was the first step, which traces and compiles what later ones use."""
        self._left = None

    def paused(self, seconds: float) -> None:
        """The main thread spent this long between two boundaries on something that is not a step.

        That is what other callbacks do at the end of an epoch, and what has to be done before its first batch
        and that of its validation: a buffer to shuffle from is filled, for example.
        """
        self._pauses.append(seconds)

    def snapshot_taken(self, seconds: float) -> None:
        """A snapshot of the input took this long, at a boundary; the next one may be taken at any."""
        self._snapshots.append(seconds)

    def save_began(self) -> None:
        self._saving_since = self._clock()

    # -- Any thread -------------------------------------------------------------------------------------

    def saved(self, seconds: float | None) -> None:
        """The save that was under way took this long until it was committed; None: it was not committed."""
        self._saving_since = None
        if seconds is not None:
            self._saves.append(seconds)

    def aligned(self, seconds: float) -> None:
        """A round took this long, from its call to its plan."""
        self._rounds.append(seconds)

    def slowest(self, entered: int) -> float:
        """Seconds to expect at most from one boundary to the next, of which `entered` were entered."""
        known = [*self._stretches, *self._pauses]  # Copies: the main thread may append meanwhile.
        left = self._left
        if left is not None:
            began, number = left
            # The step in flight is as slow as it is by now; in a longer stretch, all are as slow as their mean.
            known.append((self._clock() - began) / max(1, entered - number))
        return max(known, default=0.0) + max(list(self._snapshots), default=0.0)

    @property
    def save_seconds(self) -> float:
        """Seconds to expect at most for a save; one under way takes at least as long as it has until now."""
        since = self._saving_since
        elapsed = 0.0 if since is None else self._clock() - since
        expected = max(self.to_save / SAVE_RATE, FIRST_SAVE)
        return max(elapsed, max(self._saves, default=expected))

    def reserve(self, entered: int) -> float:
        """Seconds before a deadline by which the last round has to be called."""
        alignment = max(self._rounds, default=FIRST_ALIGNMENT)
        return grace.reserve(self.save_seconds, self.slowest(entered), alignment)
