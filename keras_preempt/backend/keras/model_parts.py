"""What a model holds that Keras lists nowhere: layers in attributes, the global seed, further optimizers.

A model may hold optimizers besides the one of `compile`, as a GAN does.

Verified with Keras 3.8.0 to 3.15.1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras

from keras_preempt.backend.keras.names import GLOBAL_ATTRIBUTE, GLOBAL_SEED_GENERATOR


def layers_of(model: Any) -> list[Any]:
    """Returns the model and all layers in it, including those that only an attribute holds."""
    return list(model._flatten_layers())


def global_seed_state(*, create: bool = False) -> Any:
    """Returns the variable behind Keras' random numbers without a seed; None if there is none yet.

    Raises KerasInternalsError if Keras keeps it in another way.
    """
    generator = GLOBAL_ATTRIBUTE.find()("global_seed_generator")
    if generator is None and create:
        generator = GLOBAL_SEED_GENERATOR.find()()
    return None if generator is None else generator.state


def is_seed_state(variable: Any) -> bool:
    """Whether a variable is the state of a `keras.random.SeedGenerator`."""
    return str(variable.name) == "seed_generator_state"


_PLAIN = frozenset({type(None), bool, int, float, str})


def named_attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yields the attributes of an object, and the items of its lists and dictionaries, each with its name.

    Plain numbers and strings, which most are, are left out.
    """
    for name, value in list(vars(owner).items()):
        kind = type(value)
        if kind in _PLAIN or name.startswith("_self_"):
            continue  # The latter are TensorFlow's own lists of the attributes.
        items: Iterable[tuple[Any, Any]]
        if kind is dict or isinstance(value, Mapping):  # To ask for a Mapping takes longer.
            items = value.items()
        elif isinstance(value, (list, tuple)):
            items = enumerate(value)
        else:
            yield name, value
            continue
        for key, each in items:
            if type(each) not in _PLAIN:
                yield f"{name}/{key}", each


def own_optimizers(model: Any) -> dict[str, keras.optimizers.Optimizer]:
    """Returns the optimizers that the model holds besides the one of `compile`, by attribute.

    Those of models inside it are included once they are built, which is when training first applies them.
    """
    found = _held(model, known=_of_compile(model))
    known = _of_compile(model) | {id(optimizer) for optimizer in found.values()}
    for layer in model._flatten_layers(include_self=False):
        for name, optimizer in _held(layer, known).items():
            if optimizer.built:
                known.add(id(optimizer))
                path, number = f"{layer.name}/{name}", 1
                while path in found:
                    number += 1
                    path = f"{layer.name}/{name}#{number}"
                found[path] = optimizer
    return found


def _of_compile(model: Any) -> set[int]:
    return {id(model.optimizer), id(getattr(model.optimizer, "inner_optimizer", None))}


def _held(owner: Any, known: set[int]) -> dict[str, keras.optimizers.Optimizer]:
    held: dict[str, keras.optimizers.Optimizer] = {}
    seen = set(known)
    for name, value in named_attributes(owner):
        if isinstance(value, keras.optimizers.Optimizer) and id(value) not in seen:
            seen.add(id(value))
            held[name] = value
    return held


def gradient_accumulators(optimizer: Any) -> list[Any]:
    """Returns the variables in which a built optimizer sums gradients, on each replica those of its own samples."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not getattr(inner, "gradient_accumulation_steps", None) or not inner.built:
        return []
    return [variable for variable in inner._accumulated_gradients if variable is not None]


def steps_done(model: Any) -> int:
    """Returns the optimizer steps since the model was compiled, whatever `steps_per_execution` and accumulation are.

    With several optimizers, it is the highest count. Optimizers of models inside it count only if the model's own have
    done nothing: a part that was trained before, as a teacher before its student, keeps its count.
    """
    return own_steps(model) or _most(own_optimizers(model).values())


def own_steps(model: Any) -> int:
    """Returns the same of the optimizers that the model itself holds."""
    return _most([model.optimizer, *_held(model, known=_of_compile(model)).values()])


def _most(optimizers: Iterable[Any]) -> int:
    inner = [getattr(each, "inner_optimizer", each) for each in optimizers if each is not None]
    return max((int(optimizer._iterations.numpy()) for optimizer in inner), default=0)


# -- The first reset of the metrics of `compile` -----------------------------------------------------------
# Keras resets them when an epoch or a validation begins, if they are built, which on one device happens in the first
# step. So a metric object that an earlier model has used begins its first epoch with what it counted there. Tracing the
# step early builds them early, so they would be reset once more than in Keras.


@contextlib.contextmanager
def first_reset_left_out(model: Any) -> Iterator[None]:
    """Leaves out the next reset of the metrics that the block builds."""
    metrics = getattr(model, "_compile_metrics", None)
    built = metrics is None or metrics.built
    try:
        yield
    finally:
        if metrics is not None and metrics.built and not built:
            vars(metrics)["reset_state"] = lambda: first_reset_is_over(model)


def first_reset_is_over(model: Any) -> None:
    """Called when the metrics have been through their first reset: no reset is left out any more."""
    metrics = getattr(model, "_compile_metrics", None)
    if metrics is not None:
        vars(metrics).pop("reset_state", None)
