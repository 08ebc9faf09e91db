"""The grace countdown: whether a notice leaves time to train on, and when the last save has to begin."""

from __future__ import annotations

import math

MARGIN = 1.5
"""Seconds of the reserve for what is not measured: clocks that differ, threads that wake late, leaving."""


def reserve(
    save_seconds: float, slowest_step_seconds: float, alignment_seconds: float, margin: float = MARGIN
) -> float:
    """Seconds before a deadline by which the final round has to be called.

    A save and a step may each take twice as long as any that was seen: the call can come right after such a
    step has begun.

    Args:
        save_seconds: Measured time of a save, until it is committed.
        slowest_step_seconds: Slowest recent step; what lies between two boundaries.
        alignment_seconds: Time from a call to the end of everyone's hold, without the steps.
        margin: Further seconds.

    Raises:
        ValueError: An argument is negative or not finite.
    """
    parts = (save_seconds, slowest_step_seconds, alignment_seconds, margin)
    if any(not math.isfinite(part) or part < 0 for part in parts):
        raise ValueError(f"Expected finite seconds, none negative. Received: {parts}.")
    return 2 * save_seconds + 2 * slowest_step_seconds + alignment_seconds + margin


def has_room(deadline: float, now: float, reserve: float, margin: float = MARGIN) -> bool:
    """Whether there is room to save now, train on, and save again (`deadline`, `now` in monotonic seconds).

    There is if what an end takes by measure fits three times, for the save now, for training that is worth that save,
    and for the end; and the margin once. That is for what only the end has: a moment at which all must be over.

    Args:
        deadline: When the last save must be over.
        now: The present.
        reserve: See `reserve`.
        margin: The part of it that is not measured.
    """
    return deadline - now > 3 * (reserve - margin) + margin


def last_call_at(deadline: float, reserve: float) -> float:
    """When to call the final round, in monotonic seconds."""
    return deadline - reserve


def too_late(deadline: float, now: float, save_seconds: float, step_seconds: float) -> float:
    """Seconds by which a save at the next boundary is expected to miss the deadline; 0 if it should not.

    Args:
        deadline: When the machine goes, in monotonic seconds.
        now: In monotonic seconds.
        save_seconds: Expected time of a save.
        step_seconds: Expected time until the next boundary.
    """
    return max(0.0, now + step_seconds + save_seconds - deadline)
