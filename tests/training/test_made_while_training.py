"""Fits whose variables are made while they train: resumed, or said at the first step that they may not be."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from keras_preempt.state.handover import UnclaimedValues
from tests.cluster.small_fit import STEPS, fit

NOT_RESUMABLE = "NOT resumable: several variables called model/"


class Twins(keras.Model):
    """Two layers, of which an eager step uses the first before the second is made."""

    def __init__(self, names: tuple[str, str]) -> None:
        super().__init__(name="twins")
        self.one, self.two = (keras.layers.Dense(1, name=name) for name in names)

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(self.last(self.one(x)) - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}

    def last(self, x: Any) -> Any:
        return self.two(x)


def made(names: tuple[str, str], **options: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = Twins(names)
    model.compile(keras.optimizers.SGD(0.01, name="sgd"), **options)
    return model


def test_two_layers_of_one_name_are_told_of_at_the_first_step_and_refused_at_the_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit(tmp_path, model=made(("same", "same"), run_eagerly=True), strike=(0, 2))
    assert caplog.text.count(NOT_RESUMABLE) == 1
    with pytest.raises(UnclaimedValues, match=r"names of their own. Received: several called model/.*same"):
        fit(tmp_path, model=made(("same", "same"), run_eagerly=True))


@pytest.mark.parametrize(
    ("names", "options"),
    [(("one", "two"), {"run_eagerly": True}), (("same", "same"), {})],
    ids=["different names", "not eager"],
)
def test_others_are_not_told_of_and_continue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, names: tuple[str, str], options: dict[str, Any]
) -> None:
    first = fit(tmp_path, model=made(names, **options), strike=(0, 2))
    rest = fit(tmp_path, model=made(names, **options))
    assert first + rest == [(epoch, batch) for epoch in range(2) for batch in range(STEPS)]
    assert "NOT resumable" not in caplog.text


def test_a_fit_that_cannot_be_traced_is_resumed_with_the_same_bits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "keras_preempt")
    tf.config.run_functions_eagerly(True)
    try:
        ends = []
        for directory, strike in (("undisturbed", None), ("preempted", (0, 2))):
            model = made(("one", "two"))
            steps = fit(tmp_path / directory, model=model, strike=strike)
            if strike is not None:
                model = made(("one", "two"))
                steps += fit(tmp_path / directory, model=model)
            values = [each.numpy().tobytes() for each in (*model.weights, *model.optimizer.variables)]
            ends.append((steps, values))
    finally:
        tf.config.run_functions_eagerly(False)
    assert ends[0] == ends[1]
    assert "exact if the training step, which cannot be looked at before it runs" in caplog.text


def test_a_value_that_no_variable_claims_is_an_error_that_names_it(tmp_path: Path) -> None:
    class Fewer(Twins):
        """Has the second layer when it is saved, and not any more when it is resumed."""

        def last(self, x: Any) -> Any:
            return x

    fit(tmp_path, model=made(("one", "two"), run_eagerly=True), strike=(0, 2))
    keras.utils.set_random_seed(1)
    fewer = Fewer(("one", "two"))
    fewer.compile(keras.optimizers.SGD(0.01, name="sgd"), run_eagerly=True)
    with pytest.raises(UnclaimedValues, match=r"Received: .* that none has claimed: .*two/kernel"):
        fit(tmp_path, model=fewer)
