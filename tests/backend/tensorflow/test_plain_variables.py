"""What a model holds in plain attributes is found, wherever it lies; what Keras tracks itself is not found twice."""

from __future__ import annotations

import keras
import tensorflow as tf

from keras_preempt.backend.tensorflow.backend import BACKEND
from keras_preempt.state.model import ModelState


class Layer(keras.layers.Dense):
    def __init__(self) -> None:
        super().__init__(1)
        self.generator = tf.random.Generator.from_seed(1)


class Model(keras.Model):
    def __init__(self) -> None:
        super().__init__(name="outer")
        self.inner = keras.Sequential([keras.Input((2,)), Layer()], name="inner")
        self.counters = {"one": tf.Variable(0), "more": tf.Variable([1.0, 2.0])}
        self.listed = [tf.Variable("text")]
        self.alias = self.inner.weights[0].value
        self.built = True


def test_variables_and_generators_are_found_in_attributes_lists_and_dictionaries() -> None:
    model = Model()
    model.compile("sgd", "mse")
    found = {
        variable.path.partition("/")[2]: variable.dtype
        for variable in BACKEND.variables.plain_variables(model)
    }
    alias = found.pop("alias")
    assert alias == "float32"
    assert found == {
        "counters/one": "int32",
        "counters/more": "float32",
        "listed/0": "string",
        "generator": "int64",
    }
    state = ModelState(model, tf.distribute.get_strategy())
    named = [name for name in (*state.mirrored, *state.local) if name.startswith("attributes/")]
    assert len(named) == 4, "a variable of Keras' is saved twice, or one of TensorFlow's is not"


def test_an_optimizer_of_the_models_own_is_saved_built_or_not() -> None:
    model = Model()
    model.compile("sgd", "mse")
    model.other = keras.optimizers.Adam()

    def saved() -> list[str]:
        state = ModelState(model, tf.distribute.get_strategy())
        return [name for name in (*state.mirrored, *state.local) if name.startswith("optimizer/other/")]

    assert len(saved()) == 2, "its count of steps and its learning rate are there before it is built"
    model.other.build(model.trainable_variables)
    assert len(saved()) == 2 + 2 * len(model.trainable_variables)
