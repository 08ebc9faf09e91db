"""The grace countdown: whether a notice leaves time to train on, and when the last save has to begin."""

from __future__ import annotations

import math
from collections.abc import Iterable


def reserve(
    save_seconds: float, slowest_step_seconds: float, alignment_seconds: float, margin: float = 2.0
) -> float:
    """Seconds before a deadline by which the final round has to be called.

    Args:
        save_seconds: Measured time of a save.
        slowest_step_seconds: Slowest recent step; a call can come right after a step began, hence twice.
        alignment_seconds: Time from a call to the end of everyone's hold, without the steps.
        margin: Further seconds, for clocks that differ and for leaving.

    Raises:
        ValueError: An argument is negative or not finite.
    """
    parts = (save_seconds, slowest_step_seconds, alignment_seconds, margin)
    if any(not math.isfinite(part) or part < 0 for part in parts):
        raise ValueError(f"Expected finite seconds, none negative. Received: {parts}.")
    return 1.5 * save_seconds + 2 * slowest_step_seconds + alignment_seconds + margin


def has_room(deadline: float, now: float, reserve: float) -> bool:
    """Whether there is room to save now, train on, and save again (`deadline`, `now` in Unix seconds)."""
    return deadline - now > 3 * reserve


def second_call_at(deadlines: Iterable[float], reserve: float) -> float | None:
    """When to call the final round, in Unix seconds: `reserve` before the earliest deadline that stands.

    None if no notice is left (all were cancelled): no call is due.
    """
    earliest = min(deadlines, default=None)
    return None if earliest is None else earliest - reserve
