"""The `tf.random.Generator`s that a training step draws from and that no checkpoint holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_preempt.backend.keras.traced_step import TracedStep, stateful_random_operations

_STATES = (2, 3)
"""Lengths of the state of a generator, which is a vector of int64: that of ThreeFry, and that of Philox."""


def unsaved_generators(traced: TracedStep, held: Callable[[Any], bool]) -> list[str]:
    """Names the variables of the generators of a step that a checkpoint does not hold.

    Args:
        traced: The step.
        held: Whether a checkpoint holds the variable with this handle, one replica's own.
    """
    if all(operation.resource is None for operation in stateful_random_operations(traced)):
        return []
    return sorted(
        {
            str(variable.name)
            for variable in traced.variables
            if _is_state(variable) and not held(variable.handle)
        }
    )


def _is_state(variable: tf.Variable) -> bool:
    shape = variable.shape
    return variable.dtype == tf.int64 and shape.rank == 1 and shape[0] in _STATES
