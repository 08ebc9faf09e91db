"""Retention: which checkpoints stay."""

from __future__ import annotations

import datetime
import math
import re
from dataclasses import dataclass
from typing import Any

from keras_preempt.checkpoint.manifest import Manifest

_UNITS = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(sec|s|min|m|h|d)\s*")
_TEXT = re.compile(f"(?:{_PART.pattern})+", re.ASCII)


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay: the newest ones, and the first one of each period forever.

    Example:
        Retention(max_to_keep=3, keep_every="epoch") keeps the three newest checkpoints, and of every epoch the
        one that was committed first. Retention(keep_every=10_000) keeps the first one in each stretch of 10,000
        training steps, Retention(keep_every="1h") the first one in each hour.

    Attributes:
        max_to_keep: How many of the checkpoints that were committed last stay, at least 1.
        keep_every: The length of a period: a number of training steps, counted from step 0; "epoch"; a time such
            as "1h" or a `datetime.timedelta`, counted from 1970 by the clocks of the workers that commit. None:
            nothing is kept forever.

    Raises:
        ValueError: An attribute is none of these.
    """

    max_to_keep: int = 2
    keep_every: int | str | datetime.timedelta | None = None

    def __post_init__(self) -> None:
        if not _is_count(self.max_to_keep):
            raise ValueError(
                f"Expected max_to_keep to be an integer of at least 1. Received: {self.max_to_keep!r}. Keep at "
                "least the newest checkpoint."
            )
        every = self.keep_every
        by_epoch = isinstance(every, str) and every == "epoch"
        if not (every is None or by_epoch or _is_count(every) or seconds_of(every) is not None):
            raise ValueError(
                "Expected keep_every to be a positive number of steps, 'epoch', a time such as '90s', '10min', "
                f"'1h' or a timedelta, or None. Received: {every!r}. Leave it out to keep only the newest."
            )

    def __str__(self) -> str:
        """Says which checkpoints stay, such as "the newest 2 stay, and the first of every epoch"."""
        stay = "the newest stays" if self.max_to_keep == 1 else f"the newest {self.max_to_keep} stay"
        every = self.keep_every
        if every is None:
            return stay
        period = f"{every:,} steps" if isinstance(every, int) else str(every)
        if isinstance(every, datetime.timedelta):
            period = f"{every.total_seconds():g} s"
        return f"{stay}, and the first of every {period}"

    def to_json(self) -> dict[str, Any]:
        every = self.keep_every
        return {
            "max_to_keep": self.max_to_keep,
            "keep_every": f"{every.total_seconds():.6f}s" if isinstance(every, datetime.timedelta) else every,
        }

    @classmethod
    def from_json(cls, value: object) -> Retention:
        """Returns what `to_json` was called on; the default for anything else, as from an older release."""
        try:
            return cls(value["max_to_keep"], value["keep_every"])  # type: ignore[index]
        except (TypeError, KeyError, ValueError):
            return cls()

    def period(self, manifest: Manifest) -> int | None:
        """Returns the number of the period that a checkpoint falls in; None if it falls in none."""
        if isinstance(self.keep_every, int):
            return manifest.step // self.keep_every
        if self.keep_every == "epoch":
            epoch = manifest.position.get("epoch")
            return epoch if isinstance(epoch, int) else None
        seconds = seconds_of(self.keep_every)
        if seconds is None or not math.isfinite(manifest.created_at):
            return None
        return math.floor(manifest.created_at / seconds)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def seconds_of(value: object) -> float | None:
    """Returns the seconds of a duration such as "90s", "1.5h", "11h50m" or a `timedelta`; None if it is none."""
    seconds = 0.0
    if isinstance(value, datetime.timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str) and _TEXT.fullmatch(text := value.strip()):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    return seconds if 0 < seconds < float("inf") else None
