"""Variables that are divided among processes, for a backend that divides none.

Each process of the test holds whole variables of TensorFlow, and says that it holds some columns of them. What lies
outside of these is spoilt, so that nobody can have read it from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint.boxes import Box, Piece, Point
from keras_preempt.checkpoint.tensors import Array


class Divided:
    """The variables of one process. Matrices are divided by columns; everything else is mirrored.

    Args:
        member: The process.
        holders: Which processes hold each of the pieces, from left to right.
    """

    def __init__(self, member: int, holders: Sequence[tuple[int, ...]]) -> None:
        self._real: Any = backend().variables
        self._member = member
        self._holders = holders
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def pieces(self, variable: Any) -> tuple[Piece, ...] | None:
        if len(variable.shape) != 2 or variable.shape[1] < len(self._holders):
            return None
        rows, columns = variable.shape
        parts = len(self._holders)
        borders = [columns * n // parts for n in range(parts + 1)]
        return tuple(
            Piece((0, borders[n]), (rows, borders[n + 1]), held) for n, held in enumerate(self._holders)
        )

    def needed(self, variable: Any) -> tuple[tuple[Point, Point], ...]:
        pieces = self.pieces(variable)
        assert pieces is not None
        return tuple((piece.start, piece.stop) for piece in pieces if self._member in piece.holders)

    def read_pieces(self, variable: Any, boxes: Sequence[Box], *, copy: bool) -> list[Array]:
        assert {(box.start, box.stop) for box in boxes} <= set(self.needed(variable))
        self.reads += 1
        return [np.array(variable.value.numpy()[box.index]) for box in boxes]

    def assign_pieces(self, variable: Any, values: Mapping[Box, Array]) -> None:
        assert {(box.start, box.stop) for box in values} == set(self.needed(variable))
        whole = np.full(variable.shape, 77, variable.value.numpy().dtype)
        for box, value in values.items():
            assert value.shape == box.extent
            whole[box.index] = value
        variable.assign(whole)

    def copies(self, components: Mapping[str, Any], runs: Any) -> dict[str, Array]:
        self._refuse(components)
        found: dict[str, Array] = self._real.copies(components, runs)
        return found

    def views(self, components: Mapping[str, Any]) -> dict[str, Array]:
        self._refuse(components)
        found: dict[str, Array] = self._real.views(components)
        return found

    def _refuse(self, components: Mapping[str, Any]) -> None:
        for part in components.values():
            assert isinstance(part, np.ndarray) or self.pieces(part) is None, "read as if it were here whole"


@contextmanager
def divided(member: int, holders: Sequence[tuple[int, ...]]) -> Iterator[Divided]:
    """Makes this process one of several among which matrices are divided."""
    variables = Divided(member, holders)
    with mock.patch.object(backend(), "variables", variables):
        yield variables
