"""Variables that are divided among processes: the boxes that this one holds, and their assignment."""

from __future__ import annotations

from typing import Any

from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.values import Box, Piece, Value


def is_divided(variable: Any) -> bool:
    return backend().variables.pieces(variable) is not None


def value_of(name: str, variable: Any, pieces: tuple[Piece, ...] | None = None) -> Value:
    """Returns a variable as a checkpoint has it, under that name."""
    return Value(name, str(variable.dtype), tuple(int(size) for size in variable.shape), pieces)


def held(name: str, variable: Any) -> list[Box]:
    """Returns the boxes of a divided variable that this process holds, under the variable's name in a checkpoint."""
    value = value_of(name, variable)
    return [value.box(start, stop) for start, stop in backend().variables.needed(variable)]


def assign_whole(name: str, variable: Any, whole: Array) -> None:
    """Gives a divided variable the value that it has as a whole: this process takes what it holds of it.

    The value must not be changed any more. Raises `ValueError` if it is of another shape or type.
    """
    value = value_of(name, variable)
    if (whole.shape, whole.dtype.name) != (value.shape, value.dtype):
        raise ValueError(
            f"Expected a value of {name} as {value.dtype}{list(value.shape)}. Received: "
            f"{whole.dtype.name}{list(whole.shape)}. Train with the program that has saved it."
        )
    backend().variables.assign_pieces(variable, {box: box.of(whole) for box in held(name, variable)})
