"""Strict reading of the fields of a JSON object that came from storage."""

from __future__ import annotations

import json
from typing import Any

from keras_preempt.checkpoint.errors import CorruptCheckpoint

LONGEST_TEXT = 10_000
"""Characters; a name, a reason, or the path of a variable in a deeply nested model."""


class Fields:
    """The fields of one JSON object, each taken once, by name and type; `end` refuses what is left.

    Every method raises `CorruptCheckpoint` if the field is missing or of another type.

    Args:
        value: what should be a JSON object.
        file: name of the file that it comes from, for messages.
        where: where it stands in that file, for messages.
    """

    def __init__(self, value: object, file: str, where: str = "document") -> None:
        self._file = file
        self._where = where
        if not isinstance(value, dict):
            raise self._corrupt("is no object")
        self._rest: dict[str, Any] = dict(value)

    def integer(self, key: str, *, minimum: int = 0, maximum: int = 2**62) -> int:
        """Takes a whole number between `minimum` and `maximum`, both included."""
        return self._checked_integer(self._take(key), key, minimum, maximum)

    def number(self, key: str) -> float:
        """Takes any number that a float can hold."""
        value = self._take(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._corrupt(f"field {key!r} is no number")
        try:
            return float(value)
        except OverflowError:
            raise self._corrupt(f"field {key!r} is too large a number") from None

    def boolean(self, key: str) -> bool:
        """Takes true or false."""
        value = self._take(key)
        if not isinstance(value, bool):
            raise self._corrupt(f"field {key!r} is neither true nor false")
        return value

    def text(self, key: str, *, longest: int = LONGEST_TEXT) -> str:
        """Takes a string of up to `longest` characters."""
        value = self._take(key)
        if not isinstance(value, str):
            raise self._corrupt(f"field {key!r} is no string")
        if len(value) > longest:
            raise self._corrupt(f"field {key!r} is a string of {len(value)} characters, more than {longest}")
        return value

    def optional_text(self, key: str) -> str | None:
        """Takes a string or null."""
        if self._rest.get(key, "") is None:
            return self._take(key)  # type: ignore[no-any-return]
        return self.text(key)

    def mapping(self, key: str, *, longest: int | None = None) -> dict[str, Any]:
        """Takes an object as it is, with up to `longest` characters in JSON; None for any number."""
        value = self._take(key)
        if not isinstance(value, dict):
            raise self._corrupt(f"field {key!r} is no object")
        if longest is not None and (length := len(json.dumps(value))) > longest:
            raise self._corrupt(f"field {key!r} has {length} characters, more than {longest}")
        return value

    def integers(self, key: str, *, minimum: int = 0, maximum: int = 2**62) -> tuple[int, ...]:
        """Takes a list of whole numbers."""
        return tuple(self._checked_integer(item, key, minimum, maximum) for item in self._list(key))

    def objects(self, key: str) -> list[Fields]:
        """Takes a list of objects."""
        return [
            Fields(item, self._file, f"{self._where}.{key}[{index}]")
            for index, item in enumerate(self._list(key))
        ]

    def end(self) -> None:
        """Makes sure that every field was taken."""
        if self._rest:
            raise self._corrupt(f"has unknown fields: {', '.join(sorted(self._rest))!r:.200}")

    def _take(self, key: str) -> Any:
        try:
            return self._rest.pop(key)
        except KeyError:
            raise self._corrupt(f"has no field {key!r}") from None

    def _list(self, key: str) -> list[Any]:
        value = self._take(key)
        if not isinstance(value, list):
            raise self._corrupt(f"field {key!r} is no list")
        return value

    def _checked_integer(self, value: object, key: str, minimum: int, maximum: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self._corrupt(f"field {key!r} is no whole number from {minimum} to {maximum}")
        return value

    def _corrupt(self, why: str) -> CorruptCheckpoint:
        return CorruptCheckpoint(self._file, f"an unexpected structure: {self._where} {why}")
