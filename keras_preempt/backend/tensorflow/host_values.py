"""Values of variables in host memory, and back, with no more copies than are needed.

A model can be as large as half the memory of its machine, and a copy takes as long as a fast disk needs for
the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from keras_preempt.backend.tensorflow import strings
from keras_preempt.checkpoint.tensors import ALIGNMENT, Array, empty

Runs = Mapping[str, tuple[int, int]]
"""First element and the one after the last, of the flattened tensor, by name."""

LARGE = 1 << 20
"""Bytes from which on a copy is worth avoiding or sharing out."""

_THREADS = 4  # that copy: what costs most is the first touch of new memory, which several can do at once
_PIECE = 16 << 20  # bytes that one thread copies at a time


def views(components: Mapping[str, Any]) -> dict[str, Array]:
    """Returns the values of variables on one device each: of those on the CPU, without copying them.

    The variables must not be assigned to as long as the arrays are in use. Strings come as `strings.encode` has them.
    """
    # Unlike numpy(), which always copies, and read_value(), which does so after a sparse update, as of an embedding.
    values = {name: np.asarray(component.read_value_no_copy()) for name, component in components.items()}
    return {name: strings.encode(value) if value.dtype.hasobject else value for name, value in values.items()}


def copies(components: Mapping[str, Any], runs: Runs) -> dict[str, Array]:
    """Returns the values of variables on one device each, which outlive every assignment.

    Args:
        components: the variables.
        runs: by name, which elements are needed: all, where it names none. Only these are copied, and take memory.
    """
    values: dict[str, Array] = {}
    pieces: list[tuple[Array, Array]] = []
    for name, value in views(components).items():
        values[name] = value
        if not _is_a_copy(components[name]):
            values[name] = empty(value.dtype.name, value.shape)
            pieces += _pieces(values[name], value, runs.get(name, (0, value.size)))
    if sum(target.nbytes for target, _ in pieces) < LARGE:
        for target, source in pieces:
            np.copyto(target, source)
    else:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="keras_preempt-copy") as pool:
            list(pool.map(np.copyto, *zip(*pieces, strict=True)))
    return values


def assign(components: Iterable[Any], array: Array) -> None:
    """Assigns a value, as `views` and `copies` return it, to one or several variables of a type.

    Where it can, TensorFlow goes on using the memory of a large array instead of copying it, and never writes to
    it. The array must not be changed any more.

    Raises:
        ValueError: The array does not fit.
    """
    value: tf.Tensor | Array | None = None
    for component in components:
        if value is None:
            strings_ = component.dtype == tf.string
            value = strings.decode(array, component.shape) if strings_ else _tensor_of(array)
        component.assign(value)


def _tensor_of(array: Array) -> tf.Tensor | Array:
    if (
        array.nbytes < LARGE
        or not array.flags.c_contiguous
        or not array.flags.writeable
        or array.ctypes.data % ALIGNMENT
    ):
        return array
    if array.dtype.name == "bfloat16":
        return tf.bitcast(_taken_over(array.view(np.uint16)), tf.bfloat16)
    if array.dtype.isbuiltin != 1:  # NumPy exchanges no other types than its own
        return array
    return _taken_over(array)


def _taken_over(array: Array) -> tf.Tensor:
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def _is_a_copy(component: Any) -> bool:
    """Whether what `views` returns shares no memory with the variable."""
    on_cpu = tf.DeviceSpec.from_string(component.device).device_type in (None, "", "CPU")
    return component.dtype == tf.string or not on_cpu


def _pieces(target: Array, source: Array, run: tuple[int, int]) -> list[tuple[Array, Array]]:
    flat, other = (array.reshape(-1)[slice(*run)].view(np.uint8) for array in (target, source))
    return [
        (flat[start : start + _PIECE], other[start : start + _PIECE]) for start in range(0, len(flat), _PIECE)
    ]
