"""The time that notices leave: which of them stand, what the end takes, and when the last save has to begin.

Moments are monotonic seconds of the worker under notice.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

MARGIN = 1.5
"""Seconds of the reserve for what is not measured: clocks that differ, threads that wake late, leaving."""

SHORTEST_LEAD = 30.0
"""Seconds that `lead` returns at least: what most platforms give, so that a storage may pause for a moment."""


@dataclass(frozen=True)
class Notice:
    """A notice of termination: somebody says that this machine, or this process, is about to be ended.

    Attributes:
        source: Who said it, such as "signal" or "coordination key".
        reason: In words, such as "SIGTERM".
        received_at: When it was received, in seconds since 1970. For people and events; nothing waits by it.
        deadline: When the machine goes, in seconds since 1970, as the source says; None if it does not say. To wait,
            use `ends_at`.
        id: Which event of its source it is about: a later notice with the same id replaces this one.
        hint: Whether it only says that a notice may follow: a reason to save, but not to leave.
        heard_at: The same moment as `received_at`, in monotonic seconds.
    """

    source: str
    reason: str
    received_at: float
    deadline: float | None = None
    id: str = ""
    hint: bool = False
    heard_at: float = field(default_factory=time.monotonic, compare=False)
    foreseen: bool = False
    """Whether its end was known all along, as that of a time limit: nothing ends this process before the deadline,
    whatever `Standing.grace` says of other notices."""

    @property
    def ends_at(self) -> float | None:
        """When the machine goes, in monotonic seconds: what the notice leaves, counted from `heard_at`.

        The system's clock may be set while the notice stands, when the network comes back, say; that must neither
        shorten nor lengthen a grace period.
        """
        return None if self.deadline is None else self.heard_at + (self.deadline - self.received_at)


@dataclass(frozen=True)
class Standing:
    """The notices that were given to a worker and not withdrawn."""

    grace: float | None = None
    """Seconds between a notice and the end of this process, if the user says so; 0 to be gone at once even where a
    notice gives more time. None: a notice with a deadline gives time until then, and any other none."""

    notices: tuple[Notice, ...] = ()  # In the order in which their events were first heard of.

    def __bool__(self) -> bool:
        return bool(self.notices)

    def add(self, notice: Notice) -> Standing:
        """Returns these with one notice more; it replaces an earlier one of the same event."""
        for number, earlier in enumerate(self.notices):
            if _event(earlier) == _event(notice):
                if notice.ends_at is None:
                    return self  # The same again, with nothing new: its time began when it was first heard.
                changed = (*self.notices[:number], notice, *self.notices[number + 1 :])
                return replace(self, notices=changed)
        return replace(self, notices=(*self.notices, notice))

    def withdraw(self, notice: Notice) -> Standing:
        """Returns these without the notice of that event."""
        kept = tuple(each for each in self.notices if _event(each) != _event(notice))
        return replace(self, notices=kept)

    @property
    def first(self) -> Notice:
        """The notice with the earliest end; there must be one."""
        return min(self.notices, key=self._save_deadline)

    @property
    def save_deadline(self) -> float:
        """When the last save must be over; in the past if there is no time to train on. There must be a notice."""
        return self._save_deadline(self.first)

    @property
    def ends_at(self) -> float | None:
        """When the machine goes at the earliest; None if that is not known."""
        known = [notice.ends_at for notice in self.notices if notice.ends_at is not None]
        if self.grace:
            known += [notice.heard_at + self.grace for notice in self.notices if not notice.foreseen]
        return min(known, default=None)

    def _save_deadline(self, notice: Notice) -> float:
        if self.grace is None or notice.foreseen:
            return notice.heard_at if notice.ends_at is None else notice.ends_at
        by = notice.heard_at + self.grace
        return by if notice.ends_at is None else min(by, notice.ends_at)


def _event(notice: Notice) -> tuple[str, str]:
    return notice.source, notice.id


def reserve(
    save_seconds: float, slowest_step_seconds: float, alignment_seconds: float, margin: float = MARGIN
) -> float:
    """Seconds before a deadline by which the last round has to be called.

    A save, until it is committed, and a step may each take twice as long as any that was seen: the call can come right
    after such a step has begun. `alignment_seconds` is the time from a call to the end of everyone's hold, without the
    steps. Raises ValueError for seconds that are negative or not finite.
    """
    parts = (save_seconds, slowest_step_seconds, alignment_seconds, margin)
    if any(not math.isfinite(part) or part < 0 for part in parts):
        raise ValueError(f"Expected finite seconds, none negative. Received: {parts}.")
    return 2 * save_seconds + 2 * slowest_step_seconds + alignment_seconds + margin


def has_room(deadline: float, now: float, reserve: float, margin: float = MARGIN) -> bool:
    """Whether there is time to save now, train on, and save again.

    The measured duration of an end must fit three times: for the save now, for training that is worth that save, and
    for the end. The margin must fit once, since only the end has a deadline.
    """
    return deadline - now > 3 * (reserve - margin) + margin


def lead(reserve: float, margin: float = MARGIN) -> float:
    """Seconds before an end that is known all along at which it becomes a notice.

    Until then it costs nothing; from then on the slowest step is measured, and so is a save, the first one. Hence twice
    the time that leaves room for that save: it may be what shows that saves take far longer than expected.
    """
    return max(SHORTEST_LEAD, 2 * (3 * (reserve - margin) + margin))


def too_late(deadline: float, now: float, save_seconds: float, step_seconds: float) -> float:
    """Seconds by which a save at the next boundary is expected to miss the deadline; 0 if it should not."""
    return max(0.0, now + step_seconds + save_seconds - deadline)


def longest_wait(left: float, save_seconds: float) -> float:
    """How many seconds a worker under notice waits, in a save that begins now, for what the others have to write.

    After that it saves without them. They have then taken twice as long as the slowest save, and so are dead rather
    than busy: if they were only busy, writing their share as well would slow them down. And there is still time to
    write everything, at worst at half the speed ever seen, before the machine goes in `left` seconds.
    """
    need = 2 * save_seconds + MARGIN
    if left < need:  # There is no time to write everything: what the others still do is the only hope.
        return max(0.0, left)
    return max(2 * save_seconds, left - need)
