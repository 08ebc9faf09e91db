"""JSON documents that carry their own checksum.

A document is one JSON object with a `format` number and, as its last field, a `crc32c` of everything before it. It is
read back only if it ends with the sum of its own bytes, so a flipped bit, a cut and an edit are all found. Files of
tensors are covered by the sums in these documents.

Floats that JSON lacks (infinities, NaN) are written as ``{"$float": "inf"}``; an object of the caller that has a single
key, beginning with '$', is wrapped as ``{"$object": ...}``, so that everything is read back as it was. Tuples become
lists.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import google_crc32c

from keras_preempt.checkpoint.errors import CorruptCheckpoint, TooLarge, UnsupportedFormat
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.process.json_fields import (
    DEEPEST,
    MOST_DIGITS,
    MOST_VALUES,
    Fields,
    check_values,
    integer,
    loads,
)

FORMAT = 1
"""The format of claims, identities, and of manifests and part lists that need no newer one: so older releases go on
reading them. Manifests and part lists are read up to `SHARDED_FORMAT`."""

SHARDED_FORMAT = 2
"""The format of manifests and part lists with sharded tensors: see `manifest`."""

LARGEST = 64 << 20
"""Bytes that a document may have."""

_LARGEST_INTEGER = 10 ** (MOST_DIGITS - 1)
_NEWEST_FORMAT = 10**6  # a number above it is no version
_DEEPEST_WRITTEN = DEEPEST // 2  # since one level can become two in the file
_SUM_MARK = b',"crc32c":'


def encode_document(body: Mapping[str, Any]) -> bytes:
    """Returns the bytes of a document, given its fields: among them `format`, and not `crc32c`.

    Raises `TypeError` if a value is not of a type that JSON has, or is nested too deep, and `ValueError` if the
    document would be too large to be read back.
    """
    if "format" not in body or "crc32c" in body:
        raise ValueError(
            "Expected a document with a field 'format' and none named 'crc32c'. Received: "
            f"{', '.join(body)}. Rename the field."
        )
    text = json.dumps(_plain(body, "", 1), separators=(",", ":"), allow_nan=False).encode()
    data = text[:-1] + _end(text[:-1])
    try:
        check_values(data)
        if len(data) > LARGEST:
            raise ValueError(f"{len(data)} bytes")
    except ValueError as error:
        raise ValueError(
            f"Expected a document of up to {LARGEST} bytes and {MOST_VALUES} values. Received: {error}. "
            "Keep large data in arrays, which are stored beside it."
        ) from error
    return data


def as_read(value: dict[str, Any]) -> dict[str, Any]:
    """Returns an object as it will be read back, tuples as lists; raises `TypeError` like `encode_document`."""
    read_back = _restored(_plain(value, "", 1), 1)
    assert isinstance(read_back, dict)
    return read_back


def decode_document(data: bytes, file: str, newest: int = FORMAT) -> dict[str, Any]:
    """Returns the fields of a document without its `crc32c`; `file` is its name, for messages.

    Raises `UnsupportedFormat` if its format is newer than `newest`, and `CorruptCheckpoint` if it is not what was
    written.
    """
    try:
        fields = loads(data, encoding="ascii")
        if not isinstance(fields, dict):
            raise CorruptCheckpoint(file, "no JSON object")
        # First, since a newer format may do everything else differently.
        if (version := integer(found := fields.get("format"), 1, _NEWEST_FORMAT)) is None:
            raise CorruptCheckpoint(file, f"no format version ({_shown(found)})")
        if version > newest:
            raise UnsupportedFormat(file, version, newest)
        head, comma, _ = data.rpartition(_SUM_MARK)
        if not comma or data[len(head) :] != _end(head):
            raise CorruptCheckpoint(file, "a document that was changed after it was written")
        fields.pop("crc32c")
        body = _restored(fields, 1)
        if not isinstance(body, dict) or "format" not in body:
            raise CorruptCheckpoint(file, "no document")
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptCheckpoint(file, f"no readable JSON document ({error!s:.200})") from error
    return body


def read_document(store: Store, name: str, newest: int = FORMAT) -> dict[str, Any]:
    """Returns the fields of a stored document; raises `NotFound`, or an error of `decode_document`."""
    try:
        return decode_document(store.read(name, limit=LARGEST), name, newest)
    except TooLarge as error:
        raise CorruptCheckpoint(name, f"{error.size} bytes, more than a document may have") from error


def of_file(value: object, file: str) -> Fields:
    """Returns the fields of an object that came from a stored file, which raise `CorruptCheckpoint`."""

    def corrupt(expected: str, received: object) -> CorruptCheckpoint:
        return CorruptCheckpoint(
            file, f"an unexpected structure: expected {expected}, received {_shown(received)}"
        )

    return Fields(value, corrupt)


def _shown(value: object) -> str:
    """Returns a value for a message, cut short; of lists and objects only the type, as they may be large."""
    return (
        f"{value!r:.200}" if isinstance(value, (str, int, float)) or value is None else type(value).__name__
    )


def _end(head: bytes) -> bytes:
    """The end of a document: the sum of its other fields."""
    return _SUM_MARK + f"{google_crc32c.value(head + b'}')}}}\n".encode()


def _plain(value: Any, where: str, depth: int) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        if not -_LARGEST_INTEGER < value < _LARGEST_INTEGER:
            raise TypeError(
                f"Expected numbers of fewer than {MOST_DIGITS} digits at {where or 'the top'}. "
                f"Received: one of {value.bit_length()} bits. Keep it as a string or an array."
            )
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, (list, tuple, Mapping)) and depth > _DEEPEST_WRITTEN:
        raise TypeError(
            f"Expected lists and dicts up to {_DEEPEST_WRITTEN} deep in each other. Received: deeper ones at "
            f"{where:.200}. Flatten them."
        )
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(
                    f"Expected string keys at {where or 'the top'}. Received: {key!r} of type "
                    f"{type(key).__name__}. Convert it to a string."
                )
        plain = {
            key: _plain(item, f"{where}.{key}" if where else key, depth + 1) for key, item in value.items()
        }
        return {"$object": plain} if _is_marked(plain) else plain
    raise TypeError(
        f"Expected a value that JSON can hold at {where or 'the top'}. Received: {value!r:.100} of type "
        f"{type(value).__name__}. Convert it to numbers, strings, lists or dicts."
    )


def _restored(value: Any, depth: int) -> Any:
    """Undoes `_plain`, in place: a document of unknown origin is not copied once more."""
    if not isinstance(value, (dict, list)):
        return value
    if depth > DEEPEST:
        raise ValueError(f"lists or objects nested more than {DEEPEST} deep")
    if isinstance(value, list):
        for index, item in enumerate(value):
            value[index] = _restored(item, depth + 1)
        return value
    content: Any = value
    if _is_marked(value):
        ((mark, content),) = value.items()
        if mark == "$float" and content in ("inf", "-inf", "nan"):
            return float(content)
        if mark != "$object" or not isinstance(content, dict):
            raise ValueError(f"unknown mark {mark[:50]!r}")
    for key, item in content.items():
        content[key] = _restored(item, depth + 1)
    return content


def _is_marked(value: Mapping[str, Any]) -> bool:
    return len(value) == 1 and next(iter(value)).startswith("$")
