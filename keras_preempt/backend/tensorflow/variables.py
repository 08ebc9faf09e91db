"""The parts of a variable on this worker, one for each replica, and their values in host memory.

Values are read and assigned with no more copies than are needed: a model can be as large as half the memory of its
machine, and a copy takes as long as a fast disk needs for the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

from keras_preempt.backend.copies import LARGE, Runs, copied
from keras_preempt.backend.keras.model_parts import attributes, layers_of
from keras_preempt.backend.user_code import is_a
from keras_preempt.checkpoint.boxes import Box
from keras_preempt.checkpoint.partition import elements
from keras_preempt.checkpoint.tensors import ALIGNMENT, Array

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_LENGTH = np.dtype("<i8")


class PlainVariable:
    """A `tf.Variable` with the attributes of a variable of Keras.

    Attributes:
        path: Where it was found.
        value: The variable.
        shape: Its shape.
        dtype: The name of its dtype.
    """

    def __init__(self, path: str, variable: tf.Variable) -> None:
        self.path = path
        self.name = path
        self.value = variable
        known = variable.shape.is_fully_defined()
        self.shape = variable.shape if known else variable.read_value().shape
        self.dtype = variable.dtype.name


def plain_variables(model: Any) -> list[PlainVariable]:
    """Returns the variables in attributes of the model and its layers that Keras does not track.

    A `tf.Variable`, or the state of a `tf.random.Generator`, in an attribute changes while the model trains, but is not
    among `model.variables`.
    """
    found: dict[int, PlainVariable] = {}
    for layer in layers_of(model):
        for name, value in attributes(layer):
            variable = value.state if isinstance(value, tf.random.Generator) else value
            if isinstance(variable, tf.Variable):
                found.setdefault(id(variable), PlainVariable(f"{layer.name}/{name}", variable))
    return list(found.values())


def named(variable: tf.Variable) -> PlainVariable:
    """Returns a variable under its own name."""
    return PlainVariable(variable.name, variable)


def parts(strategy: tf.distribute.Strategy, variable: Any) -> tuple[Any, ...]:
    """Returns what stands behind a variable on each replica of this worker."""
    return tuple(strategy.experimental_local_results(variable.value))


def identity(part: Any) -> int:
    """Returns a number that is the same for two objects that stand for one part."""
    return id(part.handle)


def pieces(variable: Any) -> None:
    """Returns None: no strategy of TensorFlow that this package works with divides a variable among processes."""
    del variable


def needed(variable: Any) -> NoReturn:
    """Is never called; see `pieces`."""
    raise _not_divided(variable)


def read_pieces(variable: Any, boxes: Sequence[Box], *, copy: bool) -> NoReturn:
    """Is never called; see `pieces`."""
    del boxes, copy
    raise _not_divided(variable)


def assign_pieces(variable: Any, values: Mapping[Box, Array]) -> NoReturn:
    """Is never called; see `pieces`."""
    del values
    raise _not_divided(variable)


def _not_divided(variable: Any) -> TypeError:
    return TypeError(
        f"Expected a variable that is divided among processes. Received: {variable.path}, of which this one holds all."
    )


def is_variable(value: Any) -> bool:
    """Whether a value is a variable, which changes later, and not a tensor."""
    return is_a(value, tf.Variable, keras.Variable)


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor or a variable."""
    return is_variable(value) or isinstance(value, tf.Tensor)


def to_tensor(value: Any) -> Any:
    """Returns a NumPy value as a tensor of the same dtype."""
    return tf.convert_to_tensor(value)


def views(components: Mapping[str, Any]) -> dict[str, Array]:
    """Returns the values of variables on one device each, without a copy of those on the CPU.

    The variables must not be assigned to as long as the arrays are in use. Strings come as `encode` returns them.

    Args:
        components: The variables, by name. An array stands for a variable that does not exist yet, and is its value.
    """
    # Unlike numpy(), which always copies, and read_value(), which does so after a sparse update, as of an embedding.
    values = {
        name: each if isinstance(each, np.ndarray) else np.asarray(each.read_value_no_copy())
        for name, each in components.items()
    }
    return {name: encode(value) if value.dtype.hasobject else value for name, value in values.items()}


def copies(components: Mapping[str, Any], runs: Runs) -> dict[str, Array]:
    """Returns the values of variables on one device each, as copies that outlive every assignment.

    Args:
        components: The variables, as in `views`.
        runs: Which elements are needed, by name; without an entry, all of them. Only these are copied and take memory.
    """
    return copied(views(components), runs, lambda name: _is_a_copy(components[name]))


def assign(components: Iterable[Any], array: Array) -> None:
    """Assigns a value, as `views` and `copies` return it, to one or several variables of one type.

    Where it can, TensorFlow keeps using the memory of a large array instead of copying it, and never writes to it. The
    array must not be changed any more.

    Raises:
        ValueError: The array does not fit.
    """
    value: tf.Tensor | Array | None = None
    for component in components:
        if value is None:
            is_string = component.dtype == tf.string
            value = decode(array, component.shape) if is_string else _tensor_of(array)
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
    if array.dtype.isbuiltin != 1:  # NumPy exchanges only its own types.
        return array
    return _taken_over(array)


def _taken_over(array: Array) -> tf.Tensor:
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def _is_a_copy(component: Any) -> bool:
    """Whether what `views` returns shares no memory with the variable."""
    if isinstance(component, np.ndarray):
        return False
    on_cpu = tf.DeviceSpec.from_string(component.device).device_type in (None, "", "CPU")
    return component.dtype == tf.string or not on_cpu


def encode(strings: np.ndarray[Any, np.dtype[np.object_]]) -> Bytes:
    """Returns an array of `bytes` objects as bytes, since a file of tensors holds only numbers.

    An array of n strings becomes one of uint8: n times the length of a string in bytes, each as eight bytes with the
    lowest first, and then all strings one after the other. The array does not hold its shape: that is the variable's.
    """
    flat = [bytes(string) for string in strings.reshape(-1)]
    lengths = np.array([len(string) for string in flat], _LENGTH)
    return np.frombuffer(lengths.tobytes() + b"".join(flat), np.uint8)


def decode(encoded: Bytes, shape: Sequence[int]) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Returns the strings that `encode` was given, in an array of that shape.

    Raises:
        ValueError: It was not made by `encode` from an array of that shape.
    """
    count = elements(shape)
    data = encoded.tobytes()
    start = count * _LENGTH.itemsize
    lengths = np.frombuffer(data[:start], _LENGTH) if len(data) >= start else np.array([-1])
    if (lengths < 0).any() or sum(map(int, lengths)) != len(data) - start:
        raise ValueError(
            f"Expected {count} strings: their lengths, and as many bytes as these add up to. Received: "
            f"{len(data)} bytes that are something else. Restore an older checkpoint."
        )
    strings = np.empty(count, object)
    for index, length in enumerate(map(int, lengths)):
        strings[index] = data[start : start + length]
        start += length
    return strings.reshape(tuple(shape))
