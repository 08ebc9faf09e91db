"""Fields of events, which anybody may have written: of the right type and within bounds, or None."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_preempt.checkpoint.errors import one_line
from keras_preempt.checkpoint.fields import integer, number

Event = Mapping[str, Any]

LATEST = 253402300799.0
"""Unix seconds: the end of the year 9999, and long enough for any duration."""


def seconds(event: Event, name: str) -> float | None:
    """A time since 1970, or how long something took."""
    return number(event.get(name), 0.0, LATEST)


def whole(event: Event, name: str) -> int | None:
    """A number of steps, workers and the like."""
    return integer(event.get(name))


def status(event: Event, name: str) -> int | None:
    """An exit status; negative for the signal that ended the process."""
    return integer(event.get(name), 1 - 2**31, 2**31 - 1)


def words(event: Event, name: str) -> str | None:
    """A text, on one line and not too long."""
    value = event.get(name)
    return one_line(value) if isinstance(value, str) else None


def truth(event: Event, name: str) -> bool | None:
    """True or false."""
    value = event.get(name)
    return value if isinstance(value, bool) else None
