"""State that a model holds beside Keras' variables: plain attributes that Keras does not track.

A `tf.Variable` or a `tf.random.Generator` in an attribute of a model or layer changes while the model trains, but is
not among `model.variables`.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from keras_preempt.backend.keras import internals as keras_internals
from keras_preempt.backend.keras.own_optimizers import attributes


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
        for name, value in attributes(layer):
            variable = value.state if isinstance(value, tf.random.Generator) else value
            if isinstance(variable, tf.Variable):
                found.setdefault(id(variable), PlainVariable(f"{layer.name}/{name}", variable))
    return list(found.values())
