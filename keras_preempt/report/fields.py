"""Fields of events, which anybody may have written: of the right type and within bounds, or absent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from keras_preempt.checkpoint.errors import one_line

Event = Mapping[str, Any]

_LARGEST = 253402300800.0  # the year 10000, for a time, and long enough for seconds


def seconds(event: Event, name: str) -> float | None:
    """A time since 1970, or how long something took."""
    value = event.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and 0 <= value < _LARGEST else None


def whole(event: Event, name: str) -> int | None:
    """A number of steps, workers and the like."""
    value = event.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 1 << 62 else None


def status(event: Event, name: str) -> int | None:
    """An exit status; negative for the signal that ended the process."""
    value = event.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 31 else None


def words(event: Event, name: str) -> str | None:
    """A text, on one line and not too long."""
    value = event.get(name)
    return one_line(value) if isinstance(value, str) else None


def truth(event: Event, name: str) -> bool | None:
    """Yes or no."""
    value = event.get(name)
    return value if isinstance(value, bool) else None
