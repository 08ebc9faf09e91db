"""Python values as JSON beside named arrays: exact, and never able to run code.

Numbers keep every bit: finite floats through their shortest decimal form, which reads back exactly, other
floats and NumPy scalars by name or bytes. Arrays go beside the JSON, to a tensors file.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_preempt.checkpoint.dtypes import NAMES, dtype_of
from keras_preempt.checkpoint.tensors import Array

_TAG = "$"


def has_state_methods(value: object) -> bool:
    """Whether an object has `get_state()`, which returns plain data, and `set_state(state)`, which takes it back."""
    return callable(getattr(value, "get_state", None)) and callable(getattr(value, "set_state", None))


def encode(value: Any, arrays: dict[str, Array], path: str) -> Any:
    """Returns `value` as JSON data, with the arrays in it added to `arrays` under names that begin with `path`.

    Raises `TypeError` if it holds anything but None, booleans, numbers, strings, arrays, and lists, tuples and
    dictionaries of these.
    """
    if isinstance(value, str):
        return str(value)
    if isinstance(value, np.generic) and value.dtype.name in NAMES:
        return {_TAG: "scalar", "dtype": value.dtype.name, "bytes": value.tobytes().hex()}
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float) and not isinstance(value, np.generic):
        return value if math.isfinite(value) else {_TAG: "float", "bytes": struct.pack("<d", value).hex()}
    if isinstance(value, np.ndarray) and value.dtype.name in NAMES:
        name = path if path not in arrays else f"{path}#{len(arrays)}"
        arrays[name] = value
        return {_TAG: "array", "name": name}
    if isinstance(value, (list, tuple)):
        items = [encode(item, arrays, f"{path}/{index}") for index, item in enumerate(value)]
        return items if isinstance(value, list) else {_TAG: "tuple", "items": items}
    if isinstance(value, Mapping):
        if _TAG not in value and all(isinstance(key, str) for key in value):
            return {key: encode(item, arrays, f"{path}/{key}") for key, item in value.items()}
        pairs = [
            [encode(key, arrays, f"{path}/{n}.key"), encode(item, arrays, f"{path}/{n}")]
            for n, (key, item) in enumerate(value.items())
        ]
        return {_TAG: "pairs", "items": pairs}
    kind = type(value).__name__
    if isinstance(value, (np.ndarray, np.generic)):
        kind += f" of {value.dtype.name}"
    raise TypeError(
        f"Expected plain data at {path} (numbers, strings, arrays, lists, dictionaries). "
        f"Received: {kind}. Return plain data from get_state()."
    )


def decode(value: Any, arrays: Mapping[str, Array]) -> Any:
    """Returns the value that `encode` was given; raises `ValueError` if the data is not its own, or lacks an array."""
    if isinstance(value, list):
        return [decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: decode(item, arrays) for key, item in value.items()}
    try:
        tag = value[_TAG]
        if tag == "scalar":
            return np.frombuffer(bytes.fromhex(value["bytes"]), dtype_of(value["dtype"]))[0]
        if tag == "float":
            return struct.unpack("<d", bytes.fromhex(value["bytes"]))[0]
        if tag == "array":
            return np.array(arrays[value["name"]])
        if tag == "tuple":
            return tuple(decode(item, arrays) for item in value["items"])
        if tag == "pairs":
            return {decode(key, arrays): decode(item, arrays) for key, item in value["items"]}
    except (KeyError, TypeError, IndexError, ValueError, struct.error) as error:
        raise ValueError(f"Expected saved plain data. Received: {value!r:.200} ({error!s:.200}).") from error
    raise ValueError(f"Expected saved plain data. Received: the unknown tag {tag!r:.50}.")
