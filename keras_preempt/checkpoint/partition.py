"""Tensors, the element types that a checkpoint can hold, and which worker writes which bytes."""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

_CODES: dict[str, str] = {
    "bool": "BOOL",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}
if not hasattr(ml_dtypes, "float8_e8m0fnu"):  # It came with ml_dtypes 0.5.
    del _CODES["float8_e8m0fnu"]
_DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in _CODES}
_NAMES = {code: name for name, code in _CODES.items()}

NAMES = tuple(_CODES)
"""Every supported element type, by its NumPy name."""

SMALLEST_CUT = 1 << 16
"""Bytes; a smaller tensor is never cut. Shares of ten times that and more are even to a tenth."""

_LARGEST = 2**62  # bytes; keeps sums within what a 64-bit file size can say
_MOST_DIMENSIONS = 32
_PIECE = re.compile(r"\[[0-9]+:[0-9]+\]\Z")


def dtype_of(name: str) -> np.dtype[Any]:
    """Returns the NumPy type of that name.

    Raises:
        ValueError: A checkpoint cannot hold it.
    """
    try:
        return _DTYPES[name]
    except (KeyError, TypeError):
        raise ValueError(
            f"Expected an element type out of {', '.join(NAMES)}. Received: {name!r}. "
            "Convert the variable, or keep it out of the checkpoint."
        ) from None


def code_of(name: str) -> str:
    """Returns the safetensors code of a NumPy type name. Raises `ValueError` like `dtype_of`."""
    dtype_of(name)
    return _CODES[name]


def name_of_code(code: object) -> str | None:
    """Returns the NumPy name of a safetensors code, None if it is not supported."""
    return _NAMES.get(code) if isinstance(code, str) else None


def elements(shape: Iterable[int]) -> int:
    """Returns the number of elements of a tensor of that shape; 1 for a scalar."""
    return math.prod(shape)


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to be stored.

    Attributes:
        name: Unique among the tensors of a checkpoint.
        dtype: NumPy name of the element type, one of `NAMES`.
        shape: Its dimensions; () for a scalar.

    Raises:
        ValueError: The type cannot be stored or the shape is none.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        _check(self.name, self.dtype, self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return elements(self.shape) * dtype_of(self.dtype).itemsize


@dataclass(frozen=True)
class Slice:
    """A run of elements of one tensor, in C order.

    Attributes:
        tensor: The tensor's name.
        dtype: NumPy name of its element type.
        shape: Dimensions of the whole tensor.
        start: First element of the flattened tensor.
        stop: Element after the last one.

    Raises:
        ValueError: The run does not lie in the tensor, or like `TensorSpec`.
    """

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    def __post_init__(self) -> None:
        _check(self.tensor, self.dtype, self.shape)
        if not 0 <= self.start <= self.stop <= elements(self.shape):
            raise ValueError(
                f"Expected a run of the {elements(self.shape)} elements of {self.tensor!r}. "
                f"Received: [{self.start}:{self.stop}]. Make slices with partition."
            )

    @property
    def whole(self) -> bool:
        """Whether it is the whole tensor."""
        return self.start == 0 and self.stop == elements(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return (self.stop - self.start) * dtype_of(self.dtype).itemsize

    @property
    def stored_whole(self) -> bool:
        """Whether it is stored under the tensor's own name and shape, not as a piece."""
        # A tensor whose own name looks like that of a piece is stored as a piece too, so that no two keys
        # are the same.
        return self.whole and not _PIECE.search(self.tensor) and self.tensor != "__metadata__"

    @property
    def key(self) -> str:
        """Name under which it is stored in a file."""
        return self.tensor if self.stored_whole else f"{self.tensor}[{self.start}:{self.stop}]"

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape under which it is stored in a file: one-dimensional for a piece."""
        return self.shape if self.stored_whole else (self.stop - self.start,)


def partition(specs: Sequence[TensorSpec], writers: int) -> list[list[Slice]]:
    """Divides tensors evenly by bytes among the writers; every worker comes to the same answer.

    The tensors are taken as one row of bytes in the order of `specs`, and each writer gets a contiguous
    stretch. A border that falls into a tensor below `SMALLEST_CUT` moves to the nearer end of it.

    Args:
        specs: The tensors.
        writers: How many workers write, at least 1.

    Returns:
        The slices of each writer, in order; they tile every tensor exactly once. A writer may have none.

    Raises:
        ValueError: There is no writer, or two tensors share a name.
    """
    if writers < 1:
        raise ValueError(f"Expected at least one writer. Received: {writers}. Name a worker that writes.")
    check_distinct(spec.name for spec in specs)
    begins = [0]
    for spec in specs:
        begins.append(begins[-1] + spec.nbytes)
    borders = [_border(specs, begins, begins[-1] * index // writers) for index in range(1, writers)]
    shares: list[list[Slice]] = [[] for _ in range(writers)]
    writer = 0
    for spec, begin in zip(specs, begins, strict=False):
        start, size = 0, elements(spec.shape)
        itemsize = dtype_of(spec.dtype).itemsize
        while True:
            while writer < len(borders) and borders[writer] <= begin + start * itemsize:
                writer += 1
            end = (borders[writer] - begin) // itemsize if writer < len(borders) else size
            stop = min(end, size)
            shares[writer].append(Slice(spec.name, spec.dtype, spec.shape, start, stop))
            start = stop
            if start >= size:
                break
    return shares


def check_tiling(slices: Iterable[Slice], specs: Iterable[TensorSpec] | None = None) -> None:
    """Makes sure that slices, in any order, make up every tensor exactly once.

    Args:
        slices: What was written.
        specs: The tensors that there must be; None if only the slices are known.

    Raises:
        ValueError: A tensor has a gap or an overlap, is described in two ways, or is not among `specs`; or
            one of `specs` is missing. The message begins with the tensor's name.
    """
    pieces: dict[str, list[Slice]] = {}
    for piece in slices:
        pieces.setdefault(piece.tensor, []).append(piece)
    for name, found in pieces.items():
        if any((piece.dtype, piece.shape) != (found[0].dtype, found[0].shape) for piece in found):
            raise ValueError(f"{name!r} is described with different shapes or element types")
        found.sort(key=lambda piece: (piece.start, piece.stop))
        end = 0
        for piece in found:
            if piece.start != end:
                kind = "a gap" if piece.start > end else "an overlap"
                first, last = sorted((end, piece.start))
                raise ValueError(f"{name!r} has {kind} between elements {first} and {last}")
            end = piece.stop
        if end != elements(found[0].shape):
            raise ValueError(f"{name!r} ends at element {end} of {elements(found[0].shape)}")
        if len({piece.start for piece in found}) != len(found):
            raise ValueError(f"{name!r} has an empty or repeated piece")
    if specs is not None:
        wanted = {spec.name: (spec.dtype, spec.shape) for spec in specs}
        for name in sorted(wanted.keys() ^ pieces.keys()):
            raise ValueError(f"{name!r} is {'missing' if name in wanted else 'not a tensor of this model'}")
        for name, found in pieces.items():
            if (found[0].dtype, found[0].shape) != wanted[name]:
                raise ValueError(f"{name!r} has another shape or element type than the model's")


def check_distinct(names: Iterable[str]) -> None:
    """Makes sure that no two tensors share a name. Raises `ValueError` naming one that do."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(
                f"Expected tensors of distinct names. Received: {name!r} twice. Give the variables unique "
                "names."
            )
        seen.add(name)


def _border(specs: Sequence[TensorSpec], begins: list[int], position: int) -> int:
    """Moves an even border, in bytes from the start of the row, to where a cut is allowed."""
    index = bisect.bisect_right(begins, position) - 1
    if index >= len(specs):
        return begins[-1]
    spec, begin, end = specs[index], begins[index], begins[index + 1]
    if spec.nbytes >= SMALLEST_CUT:
        return position - (position - begin) % dtype_of(spec.dtype).itemsize
    return begin if position - begin <= end - position else end


def _check(name: str, dtype: str, shape: tuple[int, ...]) -> None:
    itemsize = dtype_of(dtype).itemsize
    if not name:
        raise ValueError("Expected a tensor with a name. Received: an empty one. Name the variable.")
    if len(shape) > _MOST_DIMENSIONS or any(dimension < 0 for dimension in shape):
        raise ValueError(
            f"Expected {name!r} to have up to {_MOST_DIMENSIONS} dimensions of 0 or more. Received: {shape}. "
            "Correct its shape."
        )
    # Without zeros, since NumPy allocates by the product of the others.
    if elements(dimension or 1 for dimension in shape) * itemsize > _LARGEST:
        raise ValueError(
            f"Expected {name!r} to have up to 2**62 bytes. Received: shape {shape}. Correct its shape."
        )
