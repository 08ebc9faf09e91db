"""Values that a checkpoint holds, and the boxes that they are stored in.

A value is a tensor and who holds it. One that all workers hold alike (a weight under a strategy that mirrors) is
stored in runs of the flattened tensor, so that it can be cut anywhere. One that is divided among workers is stored in
the boxes in which they hold it: of a matrix that is divided by columns, a worker has a part of every row, which no run
describes. A run is a box of one dimension. What only one worker holds has no box: it goes whole into that worker's own
file.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_preempt.checkpoint.dtypes import dtype_of

_LARGEST = 2**62  # bytes; keeps sums within what a 64-bit file size can say
_MOST_DIMENSIONS = 32
_MOST_CORNERS = 1 << 20  # of all boxes of a tensor: 10,000 devices that divide six dimensions
_PIECE = re.compile(r"\[[0-9]+:[0-9]+\]\Z")

Point = tuple[int, ...]
"""An index into every dimension."""


def elements(shape: Iterable[int]) -> int:
    return math.prod(shape)


@dataclass(frozen=True)
class Piece:
    """A part of a value that is divided among workers: from `start` up to `stop`, and the workers that hold it."""

    start: Point
    stop: Point
    holders: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.holders:
            raise ValueError(
                f"Expected a worker that holds the piece from {self.start} to {self.stop}. Received: none. Name the "
                "workers whose devices have it."
            )


@dataclass(frozen=True)
class Value:
    """A tensor that the writers of a checkpoint store together.

    Attributes:
        name: Unique among the values of a checkpoint.
        dtype: NumPy name of the element type, one of `dtypes.NAMES`.
        shape: Its dimensions; () for a scalar.
        pieces: How it is divided among workers, which makes it up exactly once; None if each of them holds all of it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...] | None = None

    def __post_init__(self) -> None:
        itemsize = dtype_of(self.dtype).itemsize
        if not self.name:
            raise ValueError("Expected a tensor with a name. Received: an empty one. Name the variable.")
        if len(self.shape) > _MOST_DIMENSIONS or any(dimension < 0 for dimension in self.shape):
            raise ValueError(
                f"Expected {self.name!r} to have up to {_MOST_DIMENSIONS} dimensions of 0 or more. Received: "
                f"{self.shape}. Correct its shape."
            )
        # Without zeros, since NumPy allocates by the product of the others.
        if elements(dimension or 1 for dimension in self.shape) * itemsize > _LARGEST:
            raise ValueError(
                f"Expected {self.name!r} to have up to 2**62 bytes. Received: shape {self.shape}. Correct its shape."
            )
        for piece in self.pieces or ():
            self.box(piece.start, piece.stop)

    @property
    def nbytes(self) -> int:
        return elements(self.shape) * dtype_of(self.dtype).itemsize

    def box(self, start: Point, stop: Point) -> Box:
        return Box(self.name, self.dtype, self.shape, start, stop)

    def run(self, start: int, stop: int) -> Box:
        """Returns a run of the flattened tensor."""
        return Box(self.name, self.dtype, self.shape, (start,), (stop,), flat=True)


@dataclass(frozen=True)
class Box:
    """A part of a tensor that is stored in one piece.

    Attributes:
        tensor: The tensor's name.
        dtype: NumPy name of its element type.
        shape: Dimensions of the whole tensor.
        start: First index in each dimension.
        stop: Index after the last one, in each dimension.
        flat: Whether it is a run: then `start` and `stop` count the elements of the flattened tensor, in C order.
    """

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    start: Point
    stop: Point
    flat: bool = False

    def __post_init__(self) -> None:
        Value(self.tensor, self.dtype, self.shape)
        fits = len(self.start) == len(self.stop) == len(self.dimensions) and all(
            0 <= first <= last <= size
            for first, last, size in zip(self.start, self.stop, self.dimensions, strict=True)
        )
        if not fits:
            raise ValueError(
                f"Expected a piece of {self.tensor!r} with the dimensions {list(self.dimensions)}. Received: one from "
                f"{list(self.start)} to {list(self.stop)}. Take what the devices hold of the variable."
            )

    @property
    def dimensions(self) -> tuple[int, ...]:
        """Those in which it lies."""
        return (elements(self.shape),) if self.flat else self.shape

    @property
    def extent(self) -> tuple[int, ...]:
        """The shape of its values."""
        return tuple(stop - start for start, stop in zip(self.start, self.stop, strict=True))

    @property
    def nbytes(self) -> int:
        return elements(self.extent) * dtype_of(self.dtype).itemsize

    @property
    def whole(self) -> Box:
        """All of the tensor that it is a part of."""
        if self.extent == self.dimensions:
            return self  # As most are: a model has thousands.
        start = (0,) * len(self.dimensions)
        return Box(self.tensor, self.dtype, self.shape, start, self.dimensions, self.flat)

    @property
    def _stored_whole(self) -> bool:
        # A tensor whose own name looks like that of a piece is stored as a piece, so that no two keys are the same.
        named = _PIECE.search(self.tensor) or self.tensor == "__metadata__"
        return self.flat and self.extent == self.dimensions and not named

    @property
    def key(self) -> str:
        """Name under which it is stored in a file: the tensor's own if it is all of it, in a run."""
        # The last bracket holds no other one, so that nothing in the tensor's own name can be taken for it.
        runs = ",".join(f"{start}:{stop}" for start, stop in zip(self.start, self.stop, strict=True))
        return self.tensor if self._stored_whole else f"{self.tensor}[{runs}]"

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return self.shape if self._stored_whole else self.extent

    def intersection(self, other: Box) -> Box | None:
        """Returns what it has in common with another box of the same tensor; None if there is no such element."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        if self.flat != other.flat or any(map(operator.ge, start, stop)):
            return None
        return Box(self.tensor, self.dtype, self.shape, start, stop, self.flat)

    def of(self, whole: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns its values out of those of the whole tensor, sharing their memory where these are contiguous."""
        return self.within(self.whole, whole.reshape(self.dimensions))

    def within(self, other: Box, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns its values out of those of another box that contains it, sharing their memory."""
        index: Iterable[Any] = (
            slice(start - first, stop - first)
            for start, stop, first in zip(self.start, self.stop, other.start, strict=True)
        )
        # The ellipsis: also where there are no dimensions, it is a view.
        part: np.ndarray[Any, Any] = values[(*index, ...)]
        return part


def size_of(boxes: Iterable[Box]) -> int:
    return sum(box.nbytes for box in boxes)


def check_distinct(names: Iterable[str]) -> None:
    """Makes sure that no two tensors share a name. Raises `ValueError` naming one that do."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(
                f"Expected tensors of distinct names. Received: {name!r} twice. Give the variables unique names."
            )
        seen.add(name)


def check_cover(boxes: Iterable[Box], values: Iterable[Value] | None = None) -> None:
    """Makes sure that boxes, in any order, make up every tensor exactly once, and all of `values` if these are known.

    Raises `ValueError` if a tensor has a gap or an overlap, is described in two ways, or is not among `values`, or one
    of these is missing. The message begins with the tensor's name.
    """
    found: dict[str, list[Box]] = {}
    for box in boxes:
        found.setdefault(box.tensor, []).append(box)
    for name, of_one in found.items():
        first = of_one[0]
        if any(box.flat != first.flat for box in of_one):
            raise ValueError(f"{name!r} is stored both as a mirrored tensor and as a sharded one")
        if any((box.dtype, box.shape) != (first.dtype, first.shape) for box in of_one):
            raise ValueError(f"{name!r} is described with different shapes or element types")
        _check_exact_cover(name, first.dimensions, of_one)
    if values is not None:
        wanted = {value.name: (value.dtype, value.shape, value.pieces is None) for value in values}
        for name in sorted(wanted.keys() ^ found.keys()):
            raise ValueError(f"{name!r} is {'missing' if name in wanted else 'not a tensor of this model'}")
        for name, of_one in found.items():
            if (of_one[0].dtype, of_one[0].shape, of_one[0].flat) != wanted[name]:
                raise ValueError(f"{name!r} has another shape or element type than the model's")


def _check_exact_cover(name: str, shape: tuple[int, ...], boxes: Sequence[Box]) -> None:
    """Makes sure that every element of a tensor is in exactly one box, in time proportional to the boxes.

    Count how many boxes each element is in. The differences of these counts along all dimensions are zero but at the
    corners of the boxes, and sums of them give the counts back. So the counts are 1 everywhere exactly if the corners,
    with their signs, add up to those of the whole tensor.
    """
    if len(boxes) == 1 and boxes[0].extent == shape:
        return
    for box in boxes:
        if any(size and first == last for first, last, size in zip(box.start, box.stop, shape, strict=True)):
            raise ValueError(f"{name!r} has an empty piece")
    # What no box divides has no corners of its own; nor has a dimension without elements.
    divided = [
        n
        for n, size in enumerate(shape)
        if size and any((box.start[n], box.stop[n]) != (0, size) for box in boxes)
    ]
    if len(boxes) << len(divided) > _MOST_CORNERS and len(divided) > 1:
        raise ValueError(
            f"{name!r} is divided along {len(divided)} dimensions into {len(boxes)} pieces, too many"
        )
    corners: Counter[Point] = Counter()
    whole = [(0, shape[n]) for n in divided]
    for runs, sign in [(whole, -1), *(([(b.start[n], b.stop[n]) for n in divided], 1) for b in boxes)]:
        for ends in itertools.product((0, 1), repeat=len(runs)):
            corner = tuple(run[end] for run, end in zip(runs, ends, strict=True))
            corners[corner] += -sign if sum(ends) % 2 else sign
    wrong = min((corner for corner, count in corners.items() if count), default=None)
    if wrong is not None:
        # No element before this one is counted wrong, so that here the difference is the count itself.
        where: list[int] = [0] * len(shape)
        for n, at in zip(divided, wrong, strict=True):
            where[n] = at
        raise ValueError(f"{name!r} has {'an overlap' if corners[wrong] > 0 else 'a gap'} at element {where}")
