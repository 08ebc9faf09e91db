"""Python values as JSON beside named arrays: exact, and never able to run code.

Numbers keep every bit: finite floats through their shortest decimal form, which reads back exactly, other
floats and NumPy scalars by name or bytes. Arrays go beside the JSON, to a tensors file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

_TAG = "$"


def encode(value: Any, arrays: dict[str, np.ndarray], path: str) -> Any:
    """Turns `value` into JSON data; arrays in it are added to `arrays` under names that begin with `path`.

    Raises:
        TypeError: The value holds something else than None, booleans, numbers, strings, arrays, and lists,
            tuples and dictionaries of these.
    """
    if value is None or (isinstance(value, (bool, int, str)) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, np.generic):
        return {_TAG: "scalar", "dtype": value.dtype.name, "bytes": value.tobytes().hex()}
    if isinstance(value, float):
        return value if math.isfinite(value) else {_TAG: "float", "value": repr(value)}
    if isinstance(value, np.ndarray):
        arrays[path] = value
        return {_TAG: "array", "name": path}
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
    raise TypeError(
        f"Expected plain data at {path} (numbers, strings, arrays, lists, dictionaries). "
        f"Received: {type(value).__name__}. Return plain data from get_state()."
    )


def decode(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Turns what `encode` made back into the value.

    Raises:
        ValueError: The data is not what `encode` makes, or an array is missing.
    """
    if isinstance(value, list):
        return [decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: decode(item, arrays) for key, item in value.items()}
    try:
        tag = value[_TAG]
        if tag == "scalar":
            return np.frombuffer(bytes.fromhex(value["bytes"]), _dtype(value["dtype"]))[0]
        if tag == "float":
            return float(value["value"])
        if tag == "array":
            return arrays[value["name"]]
        if tag == "tuple":
            return tuple(decode(item, arrays) for item in value["items"])
        if tag == "pairs":
            return {decode(key, arrays): decode(item, arrays) for key, item in value["items"]}
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"Expected saved plain data. Received: {value!r} ({error}).") from error
    raise ValueError(f"Expected saved plain data. Received: the unknown tag {tag!r}.")


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        return np.dtype(getattr(ml_dtypes, name))
