"""The header of a safetensors file, read with distrust."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from keras_preempt.checkpoint.dtypes import name_of_code
from keras_preempt.checkpoint.errors import CorruptCheckpoint
from keras_preempt.checkpoint.fields import loads
from keras_preempt.checkpoint.partition import TensorSpec

LARGEST_HEADER = 100_000_000
"""Bytes; the limit of the safetensors library too."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: its key, NumPy type name, shape, and first byte after the header."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    begin: int


def parse_header(header: bytes, data_size: int, file: str) -> list[StoredTensor]:
    """Reads a header.

    Args:
        header: its bytes, without the length before them.
        data_size: bytes of the file after the header.
        file: name of the file, for messages.

    Returns:
        The tensors in the order of their bytes.

    Raises:
        CorruptCheckpoint: it is no valid header of a file of that size: bytes outside the file, overlaps,
            gaps, a type that is not known, a shape that does not fit the byte range.
    """
    try:
        fields = loads(header)
    except ValueError as error:
        raise CorruptCheckpoint(file, f"no readable header ({error!s:.200})") from error
    if not isinstance(fields, dict):
        raise CorruptCheckpoint(file, "a header that is no object")
    fields.pop("__metadata__", None)
    tensors = []
    ranges = []
    for key, field in fields.items():
        try:
            tensor, end = _parse_tensor(key, field)
        except ValueError as error:
            raise CorruptCheckpoint(file, f"{key!r:.200} in the header is wrong: {error}") from error
        tensors.append(tensor)
        ranges.append((tensor.begin, end))
    expected = 0
    for begin, end in sorted(ranges):
        if begin != expected:
            raise CorruptCheckpoint(
                file, f"{'a gap' if begin > expected else 'an overlap'} at byte {expected}"
            )
        expected = end
    if expected != data_size:
        raise CorruptCheckpoint(file, f"tensors of {expected} bytes in a file with {data_size}")
    # An empty tensor comes before the one whose first byte has the same number.
    return sorted(tensors, key=lambda tensor: (tensor.begin, 0 not in tensor.shape))


def _parse_tensor(key: str, field: Any) -> tuple[StoredTensor, int]:
    if not isinstance(field, dict) or field.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError("it needs exactly dtype, shape and data_offsets")
    dtype = name_of_code(field["dtype"])
    if dtype is None:
        raise ValueError(f"unknown element type {field['dtype']!r:.50}")
    shape, offsets = field["shape"], field["data_offsets"]
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise ValueError("shape and data_offsets are lists of whole numbers")
    spec = TensorSpec(key, dtype, tuple(shape))
    begin, end = offsets
    if end - begin != spec.nbytes:
        raise ValueError(f"{end - begin} bytes for a {dtype} tensor of shape {shape!r:.100}")
    return StoredTensor(key, dtype, spec.shape, begin), end


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
