"""JSON from storage that anybody may have written, parsed within bounds.

A megabyte of ``[[],[],...]`` becomes fifty megabytes of Python lists, and a number of a million digits takes
minutes to convert. So the text is measured before it is parsed, and what JSON leaves open (a key that stands
twice, NaN) is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NoReturn

MOST_VALUES = 1 << 22
"""Values that a text may hold: a part list of 300,000 tensors, or a list of the losses of 4 million steps."""

DEEPEST = 100
"""Levels that lists and objects may lie in each other."""

MOST_DIGITS = 1000
"""Digits that a whole number may have."""

_SHOWN = 50  # characters of what is wrong that a message shows


def loads(data: bytes, *, encoding: str = "utf-8") -> Any:
    """Parses a text.

    Args:
        data: its bytes.
        encoding: how they are encoded; 'ascii' refuses all else, and takes a quarter of the memory at worst.

    Raises:
        ValueError: it is no JSON, has more values or digits than allowed, a key twice in one object, or a NaN.
    """
    check_values(data)
    try:
        return json.loads(
            data.decode(encoding),
            parse_int=_integer,
            parse_constant=_refuse_constant,
            object_pairs_hook=_distinct,
        )
    except RecursionError as error:
        raise ValueError("lists or objects too deep in each other") from error


def check_values(data: bytes) -> None:
    """Makes sure that a text does not hold more than `MOST_VALUES`. Raises `ValueError`."""
    # Marks in strings count too, which only makes the bound stricter.
    if sum(data.count(mark) for mark in (b",", b":", b"[", b"{")) >= MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES} values")


def check_depth(depth: int) -> None:
    """Makes sure that a value does not lie deeper than `DEEPEST`. Raises `ValueError`."""
    if depth > DEEPEST:
        raise ValueError(f"lists or objects more than {DEEPEST} deep in each other")


def _integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _distinct(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise ValueError(f"{key[:_SHOWN]!r} stands twice in one object")
        fields[key] = value
    return fields
