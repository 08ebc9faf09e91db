"""The value of a variable of Keras on JAX, and of its pieces on this process.

All replicas of a variable have one value, of which each device has all or a part. So a variable has one part in the
sense of `Variables`: itself. Between the steps of an epoch the variables hold nothing, since a step is given the
state and returns the next one; `JaxBackend.before_capture` puts it back.

Verified with Keras 3.15.1 and JAX 0.6.0 to 0.12.0.1; tests/backend/jax/test_canaries.py has a canary for each private
name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from keras_preempt.backend.copies import Runs, copied
from keras_preempt.backend.seam import Variables
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.values import Box, Piece

_Bounds = tuple[tuple[int, ...], tuple[int, ...]]


class JaxVariables(Variables):
    """See `Variables`. Only variables of Keras can change in a step of JAX."""

    def is_tensor(self, value: Any) -> bool:
        return self.is_variable(value) or isinstance(value, jax.Array)

    def to_tensor(self, value: Any) -> Any:
        """Returns a NumPy value as an array of JAX, of the same dtype unless JAX has no 64 bits."""
        return jax.numpy.asarray(value)

    def views(self, components: Mapping[str, Any]) -> dict[str, Array]:
        """See `Variables.views`: without a copy of those on a CPU. The next step ends their validity."""
        return {
            name: each if isinstance(each, np.ndarray) else _host(each._value)
            for name, each in components.items()
        }

    def copies(self, components: Mapping[str, Any], runs: Runs) -> dict[str, Array]:
        def is_a_copy(name: str) -> bool:
            if isinstance(components[name], np.ndarray):
                return False
            devices = components[name]._value.sharding.device_set
            return len(devices) > 1 or next(iter(devices)).platform != "cpu"

        return copied(self.views(components), runs, is_a_copy)

    def assign(self, components: Iterable[Any], array: Array) -> None:
        for variable in components:
            if tuple(array.shape) != tuple(variable.shape):
                raise ValueError(
                    f"Expected a value of shape {tuple(variable.shape)} for {variable.path!r}. Received: {array.shape}."
                )
            variable.assign(_placed(variable, array.shape, array.dtype, lambda index: array[index]))

    def pieces(self, variable: Any) -> tuple[Piece, ...] | None:
        """See `Variables.pieces`. A process that trains its own model has all of it, whatever job it has joined."""
        if jax.process_count() == 1:
            return None
        holders = _holders(variable)
        members = set().union(*holders.values())
        if all(held == members for held in holders.values()):
            return None
        return tuple(
            Piece(start, stop, tuple(sorted(held))) for (start, stop), held in sorted(holders.items())
        )

    def needed(self, variable: Any) -> tuple[_Bounds, ...]:
        here = jax.process_index()
        return tuple(sorted(each for each, held in _holders(variable).items() if here in held))

    def read_pieces(self, variable: Any, boxes: Sequence[Box], *, copy: bool) -> list[Array]:
        here = {
            bounds(shard.index, variable.shape): shard.data for shard in variable._value.addressable_shards
        }
        read = [np.asarray(here[box.start, box.stop]) for box in boxes]
        return [np.array(value) for value in read] if copy else read

    def assign_pieces(self, variable: Any, values: Mapping[Box, Array]) -> None:
        shape = variable.shape
        known = {(box.start, box.stop): value for box, value in values.items()}
        dtype = next(iter(known.values())).dtype
        variable.assign(_placed(variable, shape, dtype, lambda index: known[bounds(index, shape)]))


def _placed(variable: Any, shape: Sequence[int], dtype: Any, part: Any) -> jax.Array:
    # Part by part: an array that is put onto devices of several processes at once knows no shards later. A copy, since
    # a CPU device may use the memory of what it is given, and a step writes to it.
    return jax.make_array_from_callback(
        tuple(shape), _sharding_of(variable), lambda index: np.array(part(index), dtype=dtype)
    )


def _host(value: jax.Array) -> Array:
    if value.is_fully_addressable or value.is_fully_replicated:
        return np.asarray(value)
    whole = np.empty(value.shape, value.dtype)
    for shard in value.addressable_shards:
        whole[shard.index] = np.asarray(shard.data)
    return whole


def _sharding_of(variable: Any) -> Any:
    value = variable._value
    # Between two steps it holds nothing, but it knows how it is divided if a distribution was set when it was made.
    if value is not None:
        return value.sharding
    # From Keras 3.15 on a layout of Keras, before that one of JAX.
    return getattr(variable._layout, "backend_layout", variable._layout)


def _holders(variable: Any) -> dict[_Bounds, set[int]]:
    """Returns the processes that hold each piece of a variable."""
    found: dict[_Bounds, set[int]] = {}
    for device, index in _sharding_of(variable).devices_indices_map(tuple(variable.shape)).items():
        found.setdefault(bounds(index, variable.shape), set()).add(device.process_index)
    return found


def bounds(index: Sequence[slice], shape: Sequence[int]) -> _Bounds:
    """Returns where a piece begins and ends in each dimension."""
    spans = [each.indices(int(size))[:2] for each, size in zip(index, shape, strict=True)]
    return tuple(start for start, _ in spans), tuple(stop for _, stop in spans)
