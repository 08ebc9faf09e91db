"""Counts and numbers in the words of a message."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def counted(count: int, noun: str) -> str:
    """A count with its noun, such as "1 step" or "1,200 batches"."""
    plural = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{plural}"


def numbered(noun: str, numbers: Collection[int]) -> str:
    """Things by their numbers, such as "worker 1" or "workers 0, 3"."""
    return f"{noun}{'' if len(numbers) == 1 else 's'} {', '.join(map(str, sorted(numbers)))}"


def some(items: Sequence[object], most: int) -> str:
    """Names the first `most` of some things, and says how many more there are."""
    shown = ", ".join(map(str, items[:most]))
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"


def size_in_words(number: float) -> str:
    """A number of bytes with its unit, such as "12 MiB"."""
    units = ["bytes", "KiB", "MiB", "GiB"]
    while number >= 1024 and len(units) > 1:
        number /= 1024
        del units[0]
    return f"{number:.0f} {units[0]}"
