"""JSON from unknown sources: parsed within bounds, its fields taken by name and type.

A megabyte of ``[[],[],...]`` becomes fifty megabytes of Python lists, and a number of a million digits takes
minutes to convert. So the text is measured before it is parsed, and what JSON leaves open (a key that occurs
twice, NaN) is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

MOST_VALUES = 1 << 22
"""Values that a text may hold: a part list of 300,000 tensors, or a list of the losses of 4 million steps."""

DEEPEST = 100  # Levels to which lists and objects may be nested.
MOST_DIGITS = 1000  # Digits that a whole number may have.
LONGEST_TEXT = 10_000  # Characters; a name, a reason, or the path of a variable in a deeply nested model.

_SHOWN = 50  # characters of what is wrong that a message shows

Refuse = Callable[[str, object], Exception]
"""Makes the error for a field: given what was expected, and the value found in its place."""


def loads(data: bytes, *, encoding: str = "utf-8") -> Any:
    """Raises ValueError for bad JSON, too much of it, a repeated key, or NaN; 'ascii' takes a quarter of the memory."""
    check_values(data)
    try:
        return _DECODER.decode(data.decode(encoding))
    except RecursionError as error:
        raise ValueError("lists or objects nested too deep") from error


def check_values(data: bytes) -> None:
    """Raises `ValueError` if a text holds more than `MOST_VALUES`."""
    # Marks in strings count too, which only makes the bound stricter.
    if sum(data.count(mark) for mark in (b",", b":", b"[", b"{")) >= MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES} values")


def integer(value: object, minimum: int | None = 0, maximum: int | None = 2**62) -> int | None:
    """Returns `value` if it is a whole number from `minimum` to `maximum`, else None."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    fits = (minimum is None or value >= minimum) and (maximum is None or value <= maximum)
    return value if fits else None


def number(value: object, minimum: float | None = None, maximum: float | None = None) -> float | None:
    """Returns `value` as a float if it is a number from `minimum` to `maximum`, else None; bounds exclude NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    fits = (minimum is None or found >= minimum) and (maximum is None or found <= maximum)
    return found if fits else None


class Fields:
    """The fields of one JSON object, each taken once, by name and type; `end` refuses what is left.

    Every method raises what `refuse` returns if the field is missing or of another type. So do callers, for fields that
    contradict each other.
    """

    def __init__(self, value: object, refuse: Refuse) -> None:
        self.refuse = refuse
        if not isinstance(value, dict):
            raise refuse("a JSON object", value)
        self._rest: dict[str, Any] = dict(value)

    def has(self, key: str) -> bool:
        """Whether there is a field of that name that was not taken yet."""
        return key in self._rest

    def integer(self, key: str, *, minimum: int = 0, maximum: int | None = 2**62) -> int:
        """Takes a whole number from `minimum` to `maximum`; None for any from `minimum` on."""
        return self._integer(self._take(key), key, minimum, maximum)

    def number(self, key: str, *, minimum: float | None = None, maximum: float | None = None) -> float:
        """Takes a number that a float can hold, from `minimum` to `maximum`."""
        value = self._take(key)
        if (found := number(value, minimum, maximum)) is None:
            is_any = minimum is None and maximum is None
            wanted = "a number" if is_any else f"a finite number from {minimum} to {maximum}"
            raise self.refuse(f"{wanted} as {key!r}", value)
        return found

    def boolean(self, key: str) -> bool:
        return bool(self._take(key, bool, "true or false"))

    def text(self, key: str, *, longest: int | None = LONGEST_TEXT) -> str:
        """Takes a string of up to `longest` characters; None for any number."""
        value = str(self._take(key, str, "a string"))
        if longest is not None and len(value) > longest:
            raise self.refuse(
                f"a string of up to {longest} characters as {key!r}", f"{len(value)} characters"
            )
        return value

    def choice(self, key: str, choices: Iterable[str]) -> str:
        value = self.text(key)
        if value not in (allowed := list(choices)):
            raise self.refuse(f"one of {', '.join(allowed)} as {key!r}", value)
        return value

    def null(self, key: str) -> bool:
        """Takes the field if it is null; returns whether it was."""
        if self._rest.get(key, key) is not None:
            return False
        del self._rest[key]
        return True

    def mapping(self, key: str, *, longest: int | None = None) -> dict[str, Any]:
        """Takes an object as it is, with up to `longest` characters in JSON; None for any number."""
        value: dict[str, Any] = self._take(key, dict, "an object")
        if longest is not None and (length := len(json.dumps(value))) > longest:
            raise self.refuse(f"an object of up to {longest} characters as {key!r}", f"{length} characters")
        return value

    def integers(self, key: str, *, minimum: int = 0, maximum: int | None = 2**62) -> tuple[int, ...]:
        """Takes a list of whole numbers."""
        return tuple(self._integer(item, key, minimum, maximum) for item in self._take(key, list, "a list"))

    def inner(self, key: str) -> Fields:
        """Takes an object, whose own fields are then taken."""
        return self._inner(self._take(key), key)

    def objects(self, key: str) -> list[Fields]:
        """Takes a list of objects."""
        items = enumerate(self._take(key, list, "a list"))
        return [self._inner(item, f"{key}[{index}]") for index, item in items]

    def end(self) -> None:
        """Makes sure that every field was taken."""
        if self._rest:
            raise self.refuse("no other fields", ", ".join(sorted(self._rest)))

    def _take(self, key: str, kind: type = object, expected: str = "") -> Any:
        if key not in self._rest:
            raise self.refuse(f"a field {key!r}", ", ".join(sorted(self._rest)) or "none")
        value = self._rest.pop(key)
        if not isinstance(value, kind):
            raise self.refuse(f"{expected} as {key!r}", value)
        return value

    def _inner(self, value: Any, where: str) -> Fields:
        return Fields(value, lambda expected, received: self.refuse(f"{expected} in {where}", received))

    def _integer(self, value: object, key: str, minimum: int, maximum: int | None) -> int:
        if (found := integer(value, minimum, maximum)) is None:
            bounds = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
            raise self.refuse(f"an integer {bounds} as {key!r}", value)
        return found


def _bounded_integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _distinct(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise ValueError(f"{key[:_SHOWN]!r} occurs twice in one object")
        fields[key] = value
    return fields


_DECODER = json.JSONDecoder(
    parse_int=_bounded_integer, parse_constant=_refuse_constant, object_pairs_hook=_distinct
)
"""Made once: a file of events has a text on each line."""
