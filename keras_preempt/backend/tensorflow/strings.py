"""String variables as bytes, since a file of tensors holds numbers alone.

An array of n strings becomes one of uint8: n times the length of a string in bytes, each as eight bytes with the
lowest first, and then all strings one after the other. Its shape is the variable's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_preempt.checkpoint.partition import elements

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_LENGTH = np.dtype("<i8")


def encode(strings: np.ndarray[Any, np.dtype[np.object_]]) -> Bytes:
    """Returns an array of `bytes` objects as bytes."""
    flat = [bytes(string) for string in strings.reshape(-1)]
    lengths = np.array([len(string) for string in flat], _LENGTH)
    return np.frombuffer(lengths.tobytes() + b"".join(flat), np.uint8)


def decode(encoded: Bytes, shape: Sequence[int]) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Returns the strings of an array of that shape.

    Raises:
        ValueError: It was not made by `encode` from an array of that shape.
    """
    count = elements(shape)
    data = encoded.tobytes()
    start = count * _LENGTH.itemsize
    lengths = np.frombuffer(data[:start], _LENGTH) if len(data) >= start else np.array([-1])
    if (lengths < 0).any() or sum(map(int, lengths)) != len(data) - start:
        raise ValueError(
            f"Expected {count} strings: their lengths, and as many bytes as these add up to. Received: "
            f"{len(data)} bytes that are something else. Restore an older checkpoint."
        )
    strings = np.empty(count, object)
    for index, length in enumerate(map(int, lengths)):
        strings[index] = data[start : start + length]
        start += length
    return strings.reshape(tuple(shape))
