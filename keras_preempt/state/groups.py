"""The variables that Keras holds for a model, by where it holds them, and which of them a strategy keeps equal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from keras_preempt.backend.keras.model_parts import gradient_accumulators, own_optimizers
from keras_preempt.checkpoint.dtypes import NAMES

Groups = list[tuple[str, Iterable[Any]]]
"""Variables by group: the name of the group, and its variables in Keras' order."""


def grouped(model: keras.Model) -> tuple[Groups, set[int], set[int]]:
    """Finds the variables of a model.

    Returns:
        The groups, the `id` of each variable that a strategy keeps equal on all replicas, and that of each in which a
        replica accumulates gradients.
    """
    # Scales of float8 "train" by being overwritten, on each replica with what it has seen itself.
    kept_equal = {
        id(v) for v in model.trainable_variables if not getattr(v, "overwrite_with_gradient", False)
    }
    optimizer_variables = list(model.optimizer.variables) if model.optimizer is not None else []
    groups: Groups = [
        ("model", model.variables),
        ("optimizer", optimizer_variables),
        ("metrics", model.metrics_variables),
    ]
    own = own_optimizers(model)
    for name, optimizer in own.items():
        groups.append((f"optimizer/{name}", optimizer.variables))
    kept_equal |= {id(v) for group, variables in groups for v in variables if group.startswith("optimizer")}
    accumulators = {
        id(v) for optimizer in (model.optimizer, *own.values()) for v in gradient_accumulators(optimizer)
    }
    return groups, kept_equal - accumulators, accumulators


def check_dtype(variable: Any) -> None:
    """Refuses a variable that a checkpoint cannot hold, now and not at the first save. Raises `ValueError`."""
    if variable.dtype not in (*NAMES, "string"):
        raise ValueError(
            f"Expected variables of the types string, {', '.join(NAMES)}. Received: {variable.path!r} of type "
            f"{variable.dtype}. Convert it; a complex128 variable can be kept as two of float64."
        )
