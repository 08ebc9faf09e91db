"""N-dimensional pieces of tensors that are divided among workers, and which worker writes which of them.

A run of bytes cannot describe a shard: of a matrix that is divided by columns, a worker holds a part of every row. So a
sharded tensor is stored in boxes: an n-dimensional run each, with its values alone.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from keras_preempt.checkpoint.errors import PicklableError
from keras_preempt.checkpoint.partition import TensorSpec, check_distinct, dtype_of, elements
from keras_preempt.process.words import numbered

Point = tuple[int, ...]
"""An index into every dimension of a tensor."""

_MOST_CORNERS = 1 << 20  # of all boxes of a tensor: 10,000 devices that divide six dimensions


@dataclass(frozen=True)
class Box:
    """An n-dimensional run of one tensor.

    Attributes:
        tensor: The tensor's name.
        dtype: NumPy name of its element type.
        shape: Dimensions of the whole tensor.
        start: First index in each dimension.
        stop: Index after the last one, in each dimension.

    Raises:
        ValueError: It does not lie in the tensor, or as from `TensorSpec`.
    """

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    start: Point
    stop: Point

    def __post_init__(self) -> None:
        TensorSpec(self.tensor, self.dtype, self.shape)
        _check_inside(self.tensor, self.shape, self.start, self.stop)

    @property
    def extent(self) -> tuple[int, ...]:
        """The shape of its values."""
        return tuple(stop - start for start, stop in zip(self.start, self.stop, strict=True))

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return elements(self.extent) * dtype_of(self.dtype).itemsize

    @property
    def index(self) -> tuple[slice, ...]:
        """Where it lies in the whole tensor, as NumPy indexes it."""
        return tuple(map(slice, self.start, self.stop))

    @property
    def key(self) -> str:
        """Name under which it is stored in a file, unique among boxes. A file with boxes holds nothing else."""
        # The last bracket holds no other one, so that nothing in the tensor's own name can be taken for it.
        runs = ",".join(f"{start}:{stop}" for start, stop in zip(self.start, self.stop, strict=True))
        return f"{self.tensor}[{runs}]"

    def meets(self, other: Box) -> bool:
        """Whether it has an element in common with another box of the same tensor."""
        return all(
            max(starts) < min(stops)
            for starts, stops in zip(
                zip(self.start, other.start, strict=True),
                zip(self.stop, other.stop, strict=True),
                strict=True,
            )
        )

    def intersection(self, other: Box) -> Box | None:
        """Returns what it has in common with another box of the same tensor; None if there is no such element."""
        if not self.meets(other):
            return None
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        return Box(self.tensor, self.dtype, self.shape, start, stop)

    def within(self, other: Box) -> tuple[slice, ...]:
        """Returns where it lies in the values of another box that contains it."""
        return tuple(
            slice(start - first, stop - first)
            for start, stop, first in zip(self.start, self.stop, other.start, strict=True)
        )


@dataclass(frozen=True)
class Piece:
    """A part of a sharded variable.

    Attributes:
        start: First index in each dimension.
        stop: Index after the last one, in each dimension.
        holders: The workers that hold it, by number; at least one.

    Raises:
        ValueError: No worker holds it.
    """

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
class ShardedSpec:
    """A tensor to be stored that is divided among workers.

    Attributes:
        name: Unique among the tensors of a checkpoint.
        dtype: NumPy name of the element type.
        shape: Its dimensions.
        pieces: Its parts, which make it up exactly once.

    Raises:
        ValueError: A piece does not lie in the tensor, or as from `TensorSpec`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    def __post_init__(self) -> None:
        TensorSpec(self.name, self.dtype, self.shape)
        for piece in self.pieces:
            _check_inside(self.name, self.shape, piece.start, piece.stop)

    def box(self, piece: Piece) -> Box:
        """Returns one of its pieces as a box."""
        return Box(self.name, self.dtype, self.shape, piece.start, piece.stop)


class PiecesLost(PicklableError, ValueError):
    """Nobody that is left holds some pieces of the model.

    Attributes:
        holders: The workers that held them.
    """

    def __init__(self, lost: Sequence[Box], holders: Collection[int]) -> None:
        super().__init__(
            "Expected every piece of the model to be held by a worker that is there. Received: "
            f"{len(lost)} that only {numbered('worker', holders)} held, such as {lost[0].key}, and did not write: "
            "gone, or too late. Nothing was committed; the newest earlier checkpoint stays valid."
        )
        self.holders = tuple(sorted(holders))


def assign(
    specs: Sequence[ShardedSpec], writers: Collection[int], gone: Collection[int] = ()
) -> dict[int, list[Box]]:
    """Divides the pieces of tensors among their holders; every worker comes to the same answer.

    A piece goes to one of its holders among the writers if there is one, else to a worker under notice. Those for which
    there is no choice come first, then the largest, and each goes to the one that has the least to write so far. Since
    not everybody holds everything, that alone may leave somebody with more than others could take off: pieces are
    handed on until no single one would leave the two that it concerns more even.

    Args:
        specs: The tensors.
        writers: The workers that are not under notice, or those that write nevertheless.
        gone: Workers that write nothing any more.

    Returns:
        The boxes of each worker that has any, by its number, in the order of `specs`.

    Raises:
        PiecesLost: All holders of a piece are gone.
        ValueError: Two tensors share a name.
    """
    check_distinct(spec.name for spec in specs)
    preferred, lost_workers = set(writers), set(gone)
    choices: list[tuple[Box, list[int]]] = []
    lost: list[Box] = []
    held_by: set[int] = set()
    for spec in specs:
        for piece in spec.pieces:
            box = spec.box(piece)
            left = sorted(set(piece.holders) - lost_workers)
            choices.append((box, [member for member in left if member in preferred] or left))
            if not left:
                lost.append(box)
                held_by.update(piece.holders)
    if lost:
        raise PiecesLost(lost, held_by)
    writer_of = _balanced([(box.nbytes, candidates) for box, candidates in choices])
    chosen: dict[int, list[Box]] = {member: [] for member in sorted(set(writer_of))}
    for (box, _), member in zip(choices, writer_of, strict=True):
        chosen[member].append(box)
    return chosen


def _balanced(choices: Sequence[tuple[int, list[int]]]) -> list[int]:
    """Returns who takes each piece, given its bytes and who may take it."""
    taken: list[int] = [-1] * len(choices)
    load: Counter[int] = Counter()
    number_of: Counter[int] = Counter()
    order = sorted(
        range(len(choices)),
        key=lambda n: (len(choices[n][1]) > 1, -choices[n][0], len(choices[n][1]), n),
    )
    for n in order:
        nbytes, candidates = choices[n]
        taken[n] = min(candidates, key=lambda member: (load[member], number_of[member], member))
        load[taken[n]] += nbytes
        number_of[taken[n]] += 1
    # Each hand-over makes the sum of the squares of all loads smaller, so that there is an end to them.
    free = [n for n in order if len(choices[n][1]) > 1]
    handed_on = True
    while handed_on:
        handed_on = False
        for n in free:
            nbytes, candidates = choices[n]
            least = min(candidates, key=lambda member: (load[member], member))
            if load[least] + nbytes < load[taken[n]]:
                load[taken[n]] -= nbytes
                load[least] += nbytes
                taken[n] = least
                handed_on = True
    return taken


def check_boxes(boxes: Iterable[Box], specs: Iterable[ShardedSpec] | None = None) -> None:
    """Makes sure that boxes, in any order, make up every tensor exactly once.

    Args:
        boxes: What was written.
        specs: The tensors that there must be; None if only the boxes are known.

    Raises:
        ValueError: A tensor has a gap or an overlap, is described in two ways, or is not among `specs`; or one of
            `specs` is missing. The message begins with the tensor's name.
    """
    found: dict[str, list[Box]] = {}
    for box in boxes:
        found.setdefault(box.tensor, []).append(box)
    for name, of_one in found.items():
        if any((box.dtype, box.shape) != (of_one[0].dtype, of_one[0].shape) for box in of_one):
            raise ValueError(f"{name!r} is described with different shapes or element types")
        _check_exact_cover(name, of_one[0].shape, of_one)
    if specs is not None:
        wanted = {spec.name: (spec.dtype, spec.shape) for spec in specs}
        for name in sorted(wanted.keys() ^ found.keys()):
            raise ValueError(
                f"{name!r} is {'missing' if name in wanted else 'not a sharded tensor of this model'}"
            )
        for name, of_one in found.items():
            if (of_one[0].dtype, of_one[0].shape) != wanted[name]:
                raise ValueError(f"{name!r} has another shape or element type than the model's")


def _check_exact_cover(name: str, shape: tuple[int, ...], boxes: Sequence[Box]) -> None:
    """Makes sure that every element of a tensor is in exactly one box, in time proportional to the boxes.

    Count how many boxes each element is in. The differences of these counts along all dimensions are zero but at the
    corners of the boxes, and sums of them give the counts back. So the counts are 1 everywhere exactly if the corners,
    with their signs, add up to those of the whole tensor.
    """
    if any(
        0 in box.extent and any(_is_empty(box, n) for n, size in enumerate(shape) if size) for box in boxes
    ):
        raise ValueError(f"{name!r} has an empty piece")
    # What no box divides has no corners of its own; nor has a dimension without elements.
    divided = [
        n
        for n, size in enumerate(shape)
        if size and any((box.start[n], box.stop[n]) != (0, size) for box in boxes)
    ]
    if len(boxes) << len(divided) > _MOST_CORNERS:
        raise ValueError(
            f"{name!r} is divided along {len(divided)} dimensions into {len(boxes)} pieces, too many"
        )
    corners: Counter[Point] = Counter()
    _add_corners(corners, [(0, shape[n]) for n in divided], -1)
    for box in boxes:
        _add_corners(corners, [(box.start[n], box.stop[n]) for n in divided], 1)
    wrong = min((corner for corner, count in corners.items() if count), default=None)
    if wrong is not None:
        # No element before this one is counted wrong, so that here the difference is the count itself.
        where: list[int] = [0] * len(shape)
        for n, at in zip(divided, wrong, strict=True):
            where[n] = at
        raise ValueError(f"{name!r} has {'an overlap' if corners[wrong] > 0 else 'a gap'} at element {where}")


def _add_corners(corners: Counter[Point], runs: Sequence[tuple[int, int]], sign: int) -> None:
    for ends in itertools.product((0, 1), repeat=len(runs)):
        corner = tuple(run[end] for run, end in zip(runs, ends, strict=True))
        corners[corner] += -sign if sum(ends) % 2 else sign


def _is_empty(box: Box, dimension: int) -> bool:
    return box.start[dimension] == box.stop[dimension]


def _check_inside(name: str, shape: tuple[int, ...], start: Point, stop: Point) -> None:
    fits = len(start) == len(stop) == len(shape) and all(
        0 <= first <= last <= size for first, last, size in zip(start, stop, shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"Expected a piece of {name!r} with the dimensions {list(shape)}. Received: one from {list(start)} to "
            f"{list(stop)}. Take what the devices hold of the variable."
        )


def view(array: np.ndarray[Any, np.dtype[Any]], index: tuple[slice, ...]) -> np.ndarray[Any, np.dtype[Any]]:
    """Returns a part of an array, sharing its memory, also where there are no dimensions."""
    part: np.ndarray[Any, np.dtype[Any]] = array[(*cast(tuple[Any, ...], index), ...)]
    return part


def size_of(boxes: Iterable[Box]) -> int:
    """Returns the bytes of boxes."""
    return sum(box.nbytes for box in boxes)
