"""Variables that are divided among processes: the boxes that this one holds, and their assignment."""

from __future__ import annotations

from typing import Any

from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.values import Box


def is_divided(variable: Any) -> bool:
    return backend().variables.pieces(variable) is not None


def held(name: str, variable: Any) -> list[Box]:
    """Returns the boxes of a divided variable that this process holds, under the variable's name in a checkpoint."""
    shape, dtype = tuple(int(size) for size in variable.shape), str(variable.dtype)
    return [Box(name, dtype, shape, start, stop) for start, stop in backend().variables.needed(variable)]


def assign_whole(name: str, variable: Any, whole: Array) -> None:
    """Gives a divided variable the value that it has as a whole: this process takes what it holds of it.

    Args:
        name: Its name in a checkpoint.
        variable: The variable.
        whole: The value; it must not be changed any more.

    Raises:
        ValueError: The value is of another shape or type.
    """
    shape, dtype = tuple(int(size) for size in variable.shape), str(variable.dtype)
    if (whole.shape, whole.dtype.name) != (shape, dtype):
        raise ValueError(
            f"Expected a value of {name} as {dtype}{list(shape)}. Received: {whole.dtype.name}{list(whole.shape)}. "
            "Train with the program that has saved it."
        )
    backend().variables.assign_pieces(variable, {box: box.of(whole) for box in held(name, variable)})
