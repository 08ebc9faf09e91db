"""A length of time as an argument says it: "90s", "10min", "1.5h", "2d", or a `datetime.timedelta`."""

from __future__ import annotations

import datetime
import re

_UNITS = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*(s|sec|min|h|d)\Z")


def seconds_of(value: object) -> float | None:
    """Returns the seconds that `value` stands for; None if it is no length of time, or not a positive one."""
    seconds = 0.0
    if isinstance(value, datetime.timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str) and (found := _TEXT.match(value.strip())):
        seconds = float(found[1]) * _UNITS[found[2]]
    return seconds if 0 < seconds < float("inf") else None
