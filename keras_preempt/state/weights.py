"""`load_weights`: gives a model the weights of a run, without the rest of its training state."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_preempt.backend.keras.model_parts import is_seed_state
from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint.errors import IdentityMismatch, one_line
from keras_preempt.checkpoint.run_directory import read_chosen, read_run
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.state import sharding
from keras_preempt.state.regroup import Rule, rule_of
from keras_preempt.state.saved_weights import Weights, read_weights
from keras_preempt.state.variable_names import differ_in_layer, named_alike, unique

_SHOWN = 10  # differences that a message lists


def load_weights(model: keras.Model, directory: str | os.PathLike[str], step: int | None = None) -> int:
    """Gives a model the weights of a run, bit for bit; touches nothing else of the model.

    Optimizer, metrics and the states of random generators stay as they are; to go on with the training, call `fit` with
    a `PreemptionCallback` instead. Every byte that is read is verified. The run may be going on meanwhile. Nothing is
    written.

    Weights that differed between the replicas of the run, such as the statistics of BatchNormalization, get one value:
    their mean, unless the variable has another aggregation.

    Args:
        model: A built model of the same variables, also under a strategy. It need not be compiled. Where Keras has
            numbered names on, because the model was made again in this process, `dense_3` stands for `dense`.
        directory: That of the `PreemptionCallback`: a path, or a place in a bucket.
        step: Training steps done; None for the newest checkpoint that is whole.

    Returns:
        The step of the checkpoint.

    Raises:
        ValueError: The model is not built.
        ForeignDirectory: The directory is not that of a run.
        IdentityMismatch: The model has other variables; the message names them, and nothing was changed.
        NoSuchCheckpoint: There is no checkpoint, none of that step, or none that can be read.
        StoreUnavailable: The storage failed.

    Example:
        >>> model = make_model()
        >>> keras_preempt.load_weights(model, "gs://bucket/runs/1")
        1200
    """
    if step is not None and (isinstance(step, bool) or not isinstance(step, int) or step < 0):
        raise ValueError(f"Expected step to be the number of a training step, or None. Received: {step!r}.")
    store = open_store(directory)
    try:
        return load_weights_from(model, store, step)[0]
    finally:
        store.close()


def load_weights_from(
    model: keras.Model, store: Store, step: int | None, saved_names: Sequence[str] | None = None
) -> tuple[int, Weights]:
    """Like `load_weights`; returns the step, and the weights.

    `saved_names` are the names by which a checkpoint has the variables of the model, in their order; None to go by the
    names that they have.
    """
    variables = _weights(model)
    read_run(store)
    rules = {
        name: rule_of(
            str(getattr(variable, "aggregation", "none")),
            np.uint8 if variable.dtype == "string" else keras.backend.standardize_dtype(variable.dtype),
        )
        for name, variable in variables.items()
    }
    info, weights = read_chosen(store, step, lambda info: read_weights(store, info, rules))
    named = None if saved_names is None else _in_order(model, saved_names)
    named = named or named_alike(list(variables), list(weights.values)) or {name: name for name in variables}
    _check(variables, weights.values, named, f"{store.url}/{info.directory}")
    strategy, held = backend().strategy_of(model), backend().variables
    for name, variable in variables.items():
        value = weights.values[named[name]]
        if sharding.is_divided(variable):
            sharding.assign_whole(name, variable, value)
            continue
        components = held.parts(strategy, variable)
        if rules[name] is Rule.TOTAL and len(components) > 1:
            variable.assign(value)  # The strategy divides it among the replicas.
        else:
            held.assign(components, value)
    return info.step, weights


def named_variables(model: keras.Model) -> dict[str, Any]:
    """All variables of a model, in its order, by the names that a checkpoint gives them."""
    found: dict[str, Any] = {}
    for variable in model.variables:
        found[unique(str(variable.path), found)] = variable
    return found


def _weights(model: keras.Model) -> dict[str, Any]:
    if not model.built:
        raise ValueError(
            f"Expected a built model. Received: {model.name!r}, which has no weights yet. Call it on a batch, or "
            "model.build(input_shape), first."
        )
    named = named_variables(model)
    return {name: variable for name, variable in named.items() if not is_seed_state(variable)}


def _in_order(model: keras.Model, saved_names: Sequence[str]) -> dict[str, str] | None:
    """The saved name of each weight of a model that was made anew of its description; None if it is another model."""
    here, weights = named_variables(model), _weights(model)
    if len(here) != len(saved_names):
        return None
    named = {name: saved for name, saved in zip(here, saved_names, strict=True) if name in weights}
    return None if any(differ_in_layer(name, saved) for name, saved in named.items()) else named


def _check(
    variables: Mapping[str, Any], saved: Mapping[str, Any], named: Mapping[str, str], where: str
) -> None:
    """Makes sure that each variable has a saved value of its type and shape. Raises `IdentityMismatch`."""
    differences = [
        f"{name}: expected {_described(saved.get(old))}, received {_described(variables[name])}"
        for name, old in named.items()
        if not _fits(saved.get(old), variables[name])
    ]
    missing = saved.keys() - set(named.values())
    differences += [
        f"{name}: expected {_described(saved[name])}, received nothing" for name in sorted(missing)
    ]
    if differences:
        shown = [one_line(line) for line in differences[:_SHOWN]]
        if len(differences) > _SHOWN:
            shown.append(f"and {len(differences) - _SHOWN} more")
        raise IdentityMismatch(
            f"Expected a model with the weights that {where} has. Received: {len(differences)} "
            f"{'difference' if len(differences) == 1 else 'differences'}:\n  "
            + "\n  ".join(shown)
            + "\nMake the model as the run did. Nothing was changed."
        )


def _fits(value: Any, variable: Any) -> bool:
    if value is not None and variable.dtype == "string":  # Bytes, whose number says nothing about a shape.
        return _described(value).startswith("uint8")
    return _described(value) == _described(variable)


def _described(value: Any) -> str:
    if value is None:
        return "nothing"
    dtype = getattr(value.dtype, "name", value.dtype)
    return f"{dtype}{[int(size) for size in value.shape]}"
