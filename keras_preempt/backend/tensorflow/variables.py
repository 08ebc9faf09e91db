"""The parts of a variable on this worker, one for each replica, and their values in host memory.

Values are read and assigned with as few copies as possible: a model may take half the memory of its machine, and a copy
takes as long as writing it to a fast disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_preempt.backend.copies import LARGE, Runs, copied
from keras_preempt.backend.keras.model_parts import layers_of, named_attributes
from keras_preempt.backend.seam import Variables
from keras_preempt.backend.user_code import is_a
from keras_preempt.checkpoint.tensors import ALIGNMENT, Array
from keras_preempt.checkpoint.values import elements

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_LENGTH = np.dtype("<i8")


class PlainVariable:
    """A `tf.Variable` with the attributes of a variable of Keras; `path` says where it was found."""

    def __init__(self, path: str, variable: tf.Variable) -> None:
        self.path = path
        self.name = path
        self.value = variable
        known = variable.shape.is_fully_defined()
        self.shape = variable.shape if known else variable.read_value().shape
        self.dtype = variable.dtype.name


class TensorFlowVariables(Variables):
    """See `Variables`. Strings come as `encode_strings` returns them."""

    def plain_variables(self, model: Any) -> list[PlainVariable]:
        """See `Variables.plain_variables`.

        A `tf.Variable`, or the state of a `tf.random.Generator`, in an attribute of the model or a layer changes while
        the model trains, but is not among `model.variables`.
        """
        found: dict[int, PlainVariable] = {}
        for layer in layers_of(model):
            for name, value in named_attributes(layer):
                variable = value.state if isinstance(value, tf.random.Generator) else value
                if isinstance(variable, tf.Variable):
                    found.setdefault(id(variable), PlainVariable(f"{layer.name}/{name}", variable))
        return list(found.values())

    def named(self, variable: tf.Variable) -> PlainVariable:
        return PlainVariable(variable.name, variable)

    def parts(self, strategy: tf.distribute.Strategy, variable: Any) -> tuple[Any, ...]:
        return tuple(strategy.experimental_local_results(variable.value))

    def identity(self, part: Any) -> int:
        return id(part.handle)

    def is_variable(self, value: Any) -> bool:
        return is_a(value, tf.Variable, keras.Variable)

    def is_tensor(self, value: Any) -> bool:
        return self.is_variable(value) or isinstance(value, tf.Tensor)

    def to_tensor(self, value: Any) -> Any:
        return tf.convert_to_tensor(value)

    def views(self, components: Mapping[str, Any]) -> dict[str, Array]:
        """See `Variables.views`: of variables on one device each, without a copy of those on the CPU."""
        # numpy() always copies, and read_value() does so after a sparse update, as of an embedding.
        values = {
            name: each if isinstance(each, np.ndarray) else np.asarray(each.read_value_no_copy())
            for name, each in components.items()
        }
        return {
            name: encode_strings(value) if value.dtype.hasobject else value for name, value in values.items()
        }

    def copies(self, components: Mapping[str, Any], runs: Runs) -> dict[str, Array]:
        def is_a_copy(name: str) -> bool:
            component = components[name]
            if isinstance(component, np.ndarray):
                return False
            on_cpu = tf.DeviceSpec.from_string(component.device).device_type in (None, "", "CPU")
            return component.dtype == tf.string or not on_cpu

        return copied(self.views(components), runs, is_a_copy)

    def assign(self, components: Iterable[Any], array: Array) -> None:
        """See `Variables.assign`. All parts are of one type. TensorFlow never writes to memory that it keeps using."""
        value: tf.Tensor | Array | None = None
        for component in components:
            if value is None:
                is_string = component.dtype == tf.string
                value = decode_strings(array, component.shape) if is_string else _tensor_of(array)
            component.assign(value)


def _tensor_of(array: Array) -> tf.Tensor | Array:
    """Returns a large array as a tensor in the same memory, where TensorFlow can; otherwise the array itself."""
    if (
        array.nbytes < LARGE
        or not array.flags.c_contiguous
        or not array.flags.writeable
        or array.ctypes.data % ALIGNMENT
    ):
        return array
    if array.dtype.name == "bfloat16":
        bits = array.view(np.uint16)
        return tf.bitcast(tf.experimental.dlpack.from_dlpack(bits.__dlpack__()), tf.bfloat16)
    if array.dtype.isbuiltin != 1:  # NumPy exchanges only its own types.
        return array
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def encode_strings(strings: np.ndarray[Any, np.dtype[np.object_]]) -> Bytes:
    """Returns an array of `bytes` objects as bytes, since a file of tensors holds only numbers.

    An array of n strings becomes one of uint8: the n lengths in bytes, as little-endian integers of eight bytes, and
    then all strings in a row. The shape is not included: it is the variable's.
    """
    flat = [bytes(string) for string in strings.reshape(-1)]
    lengths = np.array([len(string) for string in flat], _LENGTH)
    return np.frombuffer(lengths.tobytes() + b"".join(flat), np.uint8)


def decode_strings(encoded: Bytes, shape: Sequence[int]) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Undoes `encode_strings`, to an array of that shape. Raises ValueError for bytes that it has not made."""
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
