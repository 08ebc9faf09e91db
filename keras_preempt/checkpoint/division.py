"""Which worker writes which boxes of the values of a checkpoint."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Collection, Sequence

from keras_preempt.checkpoint.dtypes import dtype_of
from keras_preempt.checkpoint.errors import PicklableError
from keras_preempt.checkpoint.values import Box, Value, check_distinct, elements
from keras_preempt.process.words import numbered

SMALLEST_CUT = 1 << 16
"""Bytes; a smaller tensor is never cut. Shares of ten times that and more are even to a tenth."""


class PiecesLost(PicklableError, ValueError):
    """Nobody that is left holds some pieces of the model; `holders` are the workers that held them."""

    def __init__(self, lost: Sequence[Box], holders: Collection[int]) -> None:
        super().__init__(
            "Expected every piece of the model to be held by a worker that is there. Received: "
            f"{len(lost)} that only {numbered('worker', holders)} held, such as {lost[0].key}, and did not write: "
            "gone, or too late. Nothing was committed; the newest earlier checkpoint stays valid."
        )
        self.holders = tuple(sorted(holders))


def divide(
    values: Sequence[Value], writers: Sequence[int], gone: Collection[int] = ()
) -> dict[int, list[Box]]:
    """Divides values among workers; every worker comes to the same answer.

    What all hold is taken as one row of bytes in the order of `values`, and each writer gets an even, contiguous
    stretch of it. A border that falls into a tensor below `SMALLEST_CUT` moves to the nearer end of it.

    A piece of a divided value goes to one of its holders among the writers if there is one, else to a worker under
    notice. Those for which there is no choice come first, then the largest, and each goes to the one that has the
    least to write so far. Since not everybody holds everything, that alone may leave somebody with more than others
    could take off: pieces are handed on until no single one would leave the two that it concerns more even.

    Args:
        values: The values, of distinct names.
        writers: The workers that write, at least one: those that are not under notice, if there are any.
        gone: Workers that no longer write. Raises `PiecesLost` if all holders of a piece are among them.

    Returns:
        The boxes of each writer, and of every other worker that has any, by number: those of divided values first, each
        kind in the order of `values`.
    """
    if not writers:
        raise ValueError("Expected at least one writer. Received: none. Name a worker that writes.")
    check_distinct(value.name for value in values)
    shares: dict[int, list[Box]] = {member: [] for member in writers}
    choices: list[tuple[Box, list[int]]] = []
    lost: list[Box] = []
    held_by: set[int] = set()
    for value in values:
        for piece in value.pieces or ():
            box = value.box(piece.start, piece.stop)
            left = sorted(set(piece.holders).difference(gone))
            choices.append((box, [member for member in left if member in shares] or left))
            if not left:
                lost.append(box)
                held_by.update(piece.holders)
    if lost:
        raise PiecesLost(lost, held_by)
    writer_of = _balanced([(box.nbytes, candidates) for box, candidates in choices])
    for (box, _), member in zip(choices, writer_of, strict=True):
        shares.setdefault(member, []).append(box)
    for member, run in _even_runs([value for value in values if value.pieces is None], writers):
        shares[member].append(run)
    return shares


def _even_runs(values: Sequence[Value], writers: Sequence[int]) -> list[tuple[int, Box]]:
    """Returns who writes which run of values that every writer holds."""
    begins = [0, *itertools.accumulate(value.nbytes for value in values)]
    total = begins[-1]
    borders = [_border(values, begins, total * index // len(writers)) for index in range(1, len(writers))]
    runs, writer = [], 0
    for value, begin in zip(values, begins, strict=False):
        start, size = 0, elements(value.shape)
        itemsize = dtype_of(value.dtype).itemsize
        while True:
            while writer < len(borders) and borders[writer] <= begin + start * itemsize:
                writer += 1
            end = (borders[writer] - begin) // itemsize if writer < len(borders) else size
            stop = min(end, size)
            runs.append((writers[writer], value.run(start, stop)))
            start = stop
            if start >= size:
                break
    return runs


def _border(values: Sequence[Value], begins: list[int], position: int) -> int:
    """Moves an even border, in bytes from the start of the row, to where a cut is allowed."""
    index = bisect.bisect_right(begins, position) - 1
    if index >= len(values):
        return begins[-1]
    value, begin, end = values[index], begins[index], begins[index + 1]
    if value.nbytes >= SMALLEST_CUT:
        return position - (position - begin) % dtype_of(value.dtype).itemsize
    return begin if position - begin <= end - position else end


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
