"""Variables that are divided among processes: their pieces as boxes, and how they are read and assigned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint.boxes import Box, ShardedSpec, view
from keras_preempt.checkpoint.tensors import Array


def is_divided(variable: Any) -> bool:
    """Whether a variable is divided among processes."""
    return backend().variables.pieces(variable) is not None


def spec_of(name: str, variable: Any) -> ShardedSpec:
    """Describes a divided variable, the same on every worker.

    Args:
        name: Its name in a checkpoint.
        variable: The variable.
    """
    pieces = backend().variables.pieces(variable)
    assert pieces is not None
    return ShardedSpec(name, str(variable.dtype), _shape(variable), pieces)


def held(name: str, variable: Any) -> list[Box]:
    """Returns the boxes of a divided variable that this process holds; arguments as in `spec_of`."""
    shape, dtype = _shape(variable), str(variable.dtype)
    return [Box(name, dtype, shape, start, stop) for start, stop in backend().variables.needed(variable)]


def read(variables: Mapping[str, Any], boxes: Iterable[Box], *, copy: bool) -> dict[Box, Array]:
    """Returns the values of boxes that this process holds.

    Args:
        variables: The divided variables, by name.
        boxes: What to read of them.
        copy: Whether the values must outlive the next assignment to the variables.
    """
    by_tensor: dict[str, list[Box]] = {}
    for box in boxes:
        by_tensor.setdefault(box.tensor, []).append(box)
    found: dict[Box, Array] = {}
    for name, of_one in by_tensor.items():
        values = backend().variables.read_pieces(variables[name], of_one, copy=copy)
        found.update(zip(of_one, values, strict=True))
    return found


def assign_whole(name: str, variable: Any, whole: Array) -> None:
    """Gives a divided variable the value that it has as a whole: this process takes what it holds of it.

    Args:
        name: Its name in a checkpoint.
        variable: The variable.
        whole: The value; it must not be changed any more.

    Raises:
        ValueError: The value is of another shape or type.
    """
    boxes = held(name, variable)
    if (whole.shape, whole.dtype.name) != (_shape(variable), str(variable.dtype)):
        raise ValueError(
            f"Expected a value of {name} as {variable.dtype}{list(_shape(variable))}. Received: {whole.dtype.name}"
            f"{list(whole.shape)}. Train with the program that has saved it."
        )
    backend().variables.assign_pieces(variable, {box: view(whole, box.index) for box in boxes})


def sizes(variables: Mapping[str, Any]) -> tuple[float, int]:
    """Returns the bytes that this process writes of divided variables: an even share of what it holds, and all of it.

    Args:
        variables: The divided variables, by name.
    """
    share, most = 0.0, 0
    for name, variable in variables.items():
        spec = spec_of(name, variable)
        mine = set(held(name, variable))
        for piece in spec.pieces:
            if (box := spec.box(piece)) in mine:
                share += box.nbytes / len(piece.holders)
                most += box.nbytes
    return share, most


def copied(boxes: Mapping[str, Mapping[Box, Array]], names: Iterable[str]) -> dict[str, dict[Box, Array]]:
    """Returns copies of the boxes of some tensors."""
    return {name: {box: np.array(value) for box, value in boxes[name].items()} for name in names}


def _shape(variable: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in variable.shape)
