"""Restored values find the variables that come into being later, and no others."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.state.handover import UnclaimedValues
from keras_preempt.state.model import ModelState

ONE = tf.distribute.get_strategy()


class Chain(keras.Model):
    """Two layers, made when they are called; with one name both, if asked for."""

    def __init__(self, names: tuple[str, str] = ("first", "second"), units: int = 2) -> None:
        super().__init__(name="chain")
        self.one, self.two = (keras.layers.Dense(units, name=name) for name in names)

    def call(self, x: Any) -> Any:
        return self.two(self.one(x))


def _saved(model: keras.Model) -> tuple[dict[str, Any], dict[str, Any]]:
    model.compile(keras.optimizers.Adam(name="adam"), "mse")
    if not model.one.built:
        model(np.ones((1, 3), np.float32))
    model.optimizer.build(model.trainable_variables)
    for number, variable in enumerate(model.variables):
        variable.assign(np.full(variable.shape, number + 1.0))
    state = ModelState(model, ONE)
    values = state.capture(copy=True)
    return values.whole, values.local


def _waiting(model: keras.Model, saved: Any = None) -> ModelState:
    saved = _saved(Chain()) if saved is None else saved
    model.compile(keras.optimizers.Adam(name="adam"), "mse")
    state = ModelState(model, ONE, complete=False)
    state.restore(WorkerValues(*saved))
    return state


def test_a_value_is_there_before_its_variable_is_used() -> None:
    model = Chain()
    state = _waiting(model)
    assert "model/chain/first/kernel" in state.waiting
    # 3 inputs of 1 times the kernel of ones plus the bias of twos, and so on: no value of an initializer takes part.
    assert model(np.ones((1, 3), np.float32)).numpy().tolist() == [[5 * 3 * 2 + 4.0] * 2]
    assert not any(name.startswith("model/") for name in state.waiting)
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.numpy(), model.optimizer.variables[2].numpy()
    assert state.waiting == []


def test_what_waits_is_saved_again_as_it_was() -> None:
    saved = _saved(Chain())
    model = Chain()
    state = _waiting(model, saved)
    again = state.capture(copy=True).whole
    assert again.keys() == saved[0].keys()
    assert all(again[name].tobytes() == value.tobytes() for name, value in saved[0].items())
    built = Chain()
    _saved(built)
    wanted = {(each["name"], tuple(each["shape"])) for each in ModelState(built, ONE).signature()}
    assert {(each["name"], tuple(each["shape"])) for each in state.signature()} == wanted
    state.wait_no_more()


def test_variables_of_one_name_that_are_made_together_are_told_apart_by_their_order() -> None:
    first, model = (Chain(("same", "same")) for _ in range(2))
    first.two.build((None, 2))
    first.one.build((None, 3))
    state = _waiting(model, _saved(first))
    model.two.build((None, 2))
    model.one.build((None, 3))
    assert float(model.two.bias.numpy()[0]) == 4.0
    assert float(model.one.bias.numpy()[0]) == 2.0
    state.wait_no_more()


def test_a_variable_that_is_used_before_it_is_known_which_it_is_is_an_error() -> None:
    first, model = (Chain(("same", "same")) for _ in range(2))
    for layer in (first.one, first.two):
        layer(np.ones((1, 2), np.float32))
    state = _waiting(model, _saved(first))
    model.one(np.ones((1, 2), np.float32))  # As in a train_step that goes through layers by itself.
    with pytest.raises(UnclaimedValues, match=r"several called model/same/(kernel|bias), .* different names"):
        model.two(np.ones((1, 2), np.float32))
    state.wait_no_more()


def test_a_variable_of_another_shape_is_an_error() -> None:
    model = Chain(units=5)
    state = _waiting(model)
    expected = r"first/kernel to be float32\[3, 2\].*Received: float32\[3, 5\]"
    with pytest.raises(UnclaimedValues, match=expected):
        model(np.ones((1, 3), np.float32))
    state.wait_no_more()
