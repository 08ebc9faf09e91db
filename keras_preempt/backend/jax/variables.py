"""The value of a variable of Keras on JAX, and of its pieces on this process.

All replicas of a variable have one value, of which each device has all or a part. So a variable has one part in the
sense of `backend.seam`: itself. Between the steps of an epoch the variables hold nothing, since a step is given the
state and returns the next one; `JaxBackend.before_capture` puts it back.

Verified with Keras 3.15.1 and JAX 0.10.2; tests/backend/jax/test_canaries.py has a canary for each private name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import keras
import numpy as np

from keras_preempt.backend.copies import Runs, copied
from keras_preempt.backend.user_code import is_a
from keras_preempt.checkpoint.boxes import Box, Piece
from keras_preempt.checkpoint.tensors import Array


def plain_variables(model: Any) -> Sequence[Any]:
    """Returns none: what is no variable of Keras cannot change in a step of JAX."""
    return ()


def named(variable: Any) -> Any:
    """Returns a variable under its own name; none of JAX's own exist."""
    return variable


def parts(distribution: Any, variable: Any) -> tuple[Any, ...]:
    """Returns the variable itself."""
    return (variable,)


def identity(part: Any) -> int:
    """Returns a number that is the same for two objects that stand for one part."""
    return id(part)


def is_variable(value: Any) -> bool:
    """Whether a value is a variable, which changes later, and not an array."""
    return is_a(value, keras.Variable)


def is_tensor(value: Any) -> bool:
    """Whether a value is an array of JAX or a variable."""
    return is_variable(value) or isinstance(value, jax.Array)


def to_tensor(value: Any) -> Any:
    """Returns a NumPy value as an array of JAX, of the same dtype unless JAX has no 64 bits."""
    return jax.numpy.asarray(value)


def value_of(variable: Any) -> jax.Array:
    """Returns the array that a variable holds, without a conversion to the dtype of a policy."""
    value: jax.Array = variable._value
    return value


def views(components: Mapping[str, Any]) -> dict[str, Array]:
    """Returns the values of variables, without a copy of those on a CPU. The next step ends their validity.

    Args:
        components: The variables, by name; this process has all of each. An array is a value already.
    """
    return {
        name: each if isinstance(each, np.ndarray) else _host(value_of(each))
        for name, each in components.items()
    }


def copies(components: Mapping[str, Any], runs: Runs) -> dict[str, Array]:
    """Returns the values of variables as copies that outlive every step.

    Args:
        components: The variables, as in `views`.
        runs: Which elements are needed, by name; without an entry, all of them.
    """
    return copied(views(components), runs, lambda name: _is_a_copy(components[name]))


def assign(components: Iterable[Any], array: Array) -> None:
    """Assigns a value to variables.

    Raises:
        ValueError: The array does not fit.
    """
    for variable in components:
        if tuple(array.shape) != tuple(variable.shape):
            raise ValueError(
                f"Expected a value of shape {tuple(variable.shape)} for {variable.path!r}. Received: {array.shape}."
            )
        variable.assign(_placed(variable, array.shape, array.dtype, lambda index: array[index]))


def _placed(variable: Any, shape: Sequence[int], dtype: Any, part: Any) -> jax.Array:
    # Of each device its part: an array that is put onto devices of several processes at once knows no shards later.
    # A copy, since on a CPU the device may use the memory of what it is given, and a step writes into that.
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


def _is_a_copy(component: Any) -> bool:
    """Whether what `views` returns shares no memory with the variable."""
    if isinstance(component, np.ndarray):
        return False
    value = value_of(component)
    return len(value.sharding.device_set) > 1 or next(iter(value.sharding.device_set)).platform != "cpu"


# -- Variables that are divided among processes ------------------------------------------------------------


def pieces(variable: Any) -> tuple[Piece, ...] | None:
    """Returns the pieces of a variable that is divided among processes; None if this process has all of it.

    A process that trains a model of its own, whatever job it has joined, has all of it.
    """
    if jax.process_count() == 1:
        return None
    holders = _holders(variable)
    members = set().union(*holders.values())
    if all(held == members for held in holders.values()):
        return None
    return tuple(Piece(start, stop, tuple(sorted(held))) for (start, stop), held in sorted(holders.items()))


def _sharding_of(variable: Any) -> Any:
    value = value_of(variable)
    # Between two steps it holds nothing, but it knows how it is divided if a distribution was set when it was made.
    return variable._layout.backend_layout if value is None else value.sharding


_Bounds = tuple[tuple[int, ...], tuple[int, ...]]


def _holders(variable: Any) -> dict[_Bounds, set[int]]:
    shape = tuple(int(size) for size in variable.shape)
    found: dict[_Bounds, set[int]] = {}
    for device, index in _sharding_of(variable).devices_indices_map(shape).items():
        found.setdefault(bounds(index, shape), set()).add(device.process_index)
    return found


def bounds(index: Sequence[slice], shape: Sequence[int]) -> _Bounds:
    """Returns where a piece begins and ends in each dimension."""
    spans = [each.indices(size)[:2] for each, size in zip(index, shape, strict=True)]
    return tuple(start for start, _ in spans), tuple(stop for _, stop in spans)


def needed(variable: Any) -> tuple[_Bounds, ...]:
    """Returns the distinct pieces of a variable that the devices of this process have."""
    here = jax.process_index()
    return tuple(sorted(each for each, held in _holders(variable).items() if here in held))


def read_pieces(variable: Any, boxes: Sequence[Box], *, copy: bool) -> list[Array]:
    """Returns the values of some of these pieces.

    Args:
        variable: The variable.
        boxes: Which ones, each with a `start` and a `stop`.
        copy: Whether they must outlive the next step.
    """
    shape = tuple(int(size) for size in variable.shape)
    here = {bounds(shard.index, shape): shard.data for shard in value_of(variable).addressable_shards}
    read = [np.asarray(here[box.start, box.stop]) for box in boxes]
    return [np.array(value) for value in read] if copy else read


def assign_pieces(variable: Any, values: Mapping[Box, Array]) -> None:
    """Assigns to a variable what this process has of it.

    Args:
        variable: The variable.
        values: The values of all pieces of `needed`.
    """
    shape = tuple(int(size) for size in variable.shape)
    known = {(box.start, box.stop): value for box, value in values.items()}
    dtype = next(iter(known.values())).dtype
    variable.assign(_placed(variable, shape, dtype, lambda index: known[bounds(index, shape)]))
