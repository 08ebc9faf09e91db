"""State that a model holds beside Keras' variables: plain attributes that Keras does not track.

A `tf.Variable` or a `tf.random.Generator` in an attribute of a model or layer, and optimizers of the model's own, as
in a GAN, change while the model trains, but are not among `model.variables`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from keras_preempt import keras_internals


class PlainVariable:
    """A `tf.Variable` with the attributes of one of Keras'.

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


def plain_variables(model: keras.Model) -> list[PlainVariable]:
    """Returns the variables of TensorFlow in attributes of the model and its layers, those of generators too."""
    found: dict[int, PlainVariable] = {}
    for layer in keras_internals.layers_of(model):
        for name, value in _attributes(layer):
            variable = value.state if isinstance(value, tf.random.Generator) else value
            if isinstance(variable, tf.Variable):
                found.setdefault(id(variable), PlainVariable(f"{layer.name}/{name}", variable))
    return list(found.values())


def own_optimizers(model: keras.Model) -> dict[str, keras.optimizers.Optimizer]:
    """Returns the optimizers that the model holds besides the one of `compile`, by attribute.

    Raises:
        ValueError: One of them is not built, so that it is not known yet what it will keep.
    """
    compiled = model.optimizer
    known = {id(compiled), id(getattr(compiled, "inner_optimizer", None))}
    own = {
        name: value
        for name, value in _attributes(model)
        if isinstance(value, keras.optimizers.Optimizer) and id(value) not in known
    }
    unbuilt = [name for name, optimizer in own.items() if not optimizer.built]
    if unbuilt:
        raise ValueError(
            "Expected every optimizer of the model to be built before fit, as its state is to be restored before the "
            f"first step. Received: {', '.join(unbuilt)}, not built. Call optimizer.build(variables) with the "
            "variables that it will be applied to, for example in compile."
        )
    return own


def _attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object, and what its lists and dictionaries hold."""
    for name, value in vars(owner).items():
        if name.startswith("_self_"):
            continue  # TensorFlow's own list of the attributes.
        if isinstance(value, Mapping):
            yield from ((f"{name}/{key}", each) for key, each in value.items())
        elif isinstance(value, (list, tuple)):
            yield from ((f"{name}/{number}", each) for number, each in enumerate(value))
        else:
            yield name, value
