"""JSON documents that notice when they were changed.

A document is one JSON object with a `format` number and, as its last field, a `crc32c` of what stands before
it. It is read back only if its bytes are exactly what writing its content gives, so a flipped bit, a cut and
an edit are all found. Files of tensors are covered by the sums in these documents.

Floats that JSON lacks (infinities, NaN) are written as ``{"$float": "inf"}``; an object of the caller's own
with one '$' key is wrapped as ``{"$object": ...}``, so that everything is read back as it was. Tuples become
lists.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

import google_crc32c

from keras_preempt.checkpoint.errors import CorruptCheckpoint, NotFound, TooLarge, UnsupportedFormat
from keras_preempt.checkpoint.store import Store

FORMAT = 1
"""The newest format of manifests, part lists, claims and identities that this version reads, and writes."""

LARGEST = 64 << 20
"""Bytes that a document may have."""


def encode(body: Mapping[str, Any]) -> bytes:
    """Returns the bytes of a document.

    Args:
        body: its fields, all of JSON's types, among them `format`; no field `crc32c`.

    Raises:
        TypeError: a value is not of a type that JSON has; the message names where it stands.
    """
    if "format" not in body or "crc32c" in body:
        raise ValueError(
            "Expected a document with a field 'format' and none named 'crc32c'. Received: "
            f"{', '.join(body)}. Rename the field."
        )
    text = json.dumps(_plain(body, ""), separators=(",", ":"), allow_nan=False)
    return f'{text[:-1]},"crc32c":{google_crc32c.value(text.encode())}}}\n'.encode()


def as_read(value: dict[str, Any]) -> dict[str, Any]:
    """Returns an object as it will be read back, tuples as lists; raises `TypeError` like `encode`."""
    read_back = _restored(_plain(value, ""))
    assert isinstance(read_back, dict)
    return read_back


def decode(data: bytes, file: str) -> dict[str, Any]:
    """Returns the fields of a document without its `crc32c`.

    Args:
        data: its bytes.
        file: its name, for messages.

    Raises:
        UnsupportedFormat: it was written in a newer format.
        CorruptCheckpoint: it is not what was written.
    """
    try:
        fields = json.loads(data, parse_constant=_refuse_constant)
        if not isinstance(fields, dict):
            raise CorruptCheckpoint(file, "no JSON object")
        # First of all: a newer format may do everything else differently.
        _check_format(fields.get("format"), file)
        fields.pop("crc32c", None)
        body = _restored(fields)
        unchanged = isinstance(body, dict) and encode(body) == data
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptCheckpoint(file, f"no readable JSON document ({error!s:.200})") from error
    if not unchanged:
        raise CorruptCheckpoint(file, "a document that was changed after it was written")
    assert isinstance(body, dict)
    return body


def read(store: Store, name: str) -> dict[str, Any]:
    """Returns the fields of a stored document.

    Raises:
        NotFound: there is none of that name.
        UnsupportedFormat: it was written in a newer format.
        CorruptCheckpoint: it is not what was written, or too large to be a document.
    """
    try:
        return decode(store.read(name, limit=LARGEST), name)
    except TooLarge as error:
        raise CorruptCheckpoint(name, f"{error.size} bytes, more than a document may have") from error


def read_listed(store: Store, name: str, *, size: int, crc32c: int) -> dict[str, Any]:
    """Returns the fields of a document that another one lists with its size in bytes and its sum.

    Raises:
        UnsupportedFormat: it was written in a newer format.
        CorruptCheckpoint: it is missing or not what was written.
    """
    if size > LARGEST:
        raise CorruptCheckpoint(name, f"a listed size of {size} bytes, more than a document may have")
    try:
        data = store.read(name, limit=size)
    except NotFound as error:
        raise CorruptCheckpoint(name, "no file of that name") from error
    except TooLarge as error:
        raise CorruptCheckpoint(name, f"{error.size} bytes instead of {size}") from error
    if len(data) != size:
        raise CorruptCheckpoint(name, f"{len(data)} bytes instead of {size}")
    if google_crc32c.value(data) != crc32c:
        raise CorruptCheckpoint(name, "another crc32c than when it was written")
    return decode(data, name)


def _check_format(version: object, file: str) -> None:
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CorruptCheckpoint(file, f"no format version ({version!r:.50})")
    if version > FORMAT:
        raise UnsupportedFormat(file, version, FORMAT)


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _plain(value: Any, where: str) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(
                    f"Expected string keys at {where or 'the top'}. Received: {key!r} of type "
                    f"{type(key).__name__}. Convert it to a string."
                )
        plain = {key: _plain(item, f"{where}.{key}" if where else key) for key, item in value.items()}
        return {"$object": plain} if _is_marked(plain) else plain
    raise TypeError(
        f"Expected a value that JSON can hold at {where or 'the top'}. Received: {value!r:.100} of type "
        f"{type(value).__name__}. Convert it to numbers, strings, lists or dicts."
    )


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return [_restored(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _is_marked(value):
        ((mark, content),) = value.items()
        if mark == "$float" and content in ("inf", "-inf", "nan"):
            return float(content)
        if mark == "$object" and isinstance(content, dict):
            return {key: _restored(item) for key, item in content.items()}
        raise ValueError(f"unknown mark {mark!r}")
    return {key: _restored(item) for key, item in value.items()}


def _is_marked(value: dict[str, Any]) -> bool:
    return len(value) == 1 and next(iter(value)).startswith("$")
