"""Models of which a look before training does not show all: variables made in a step, and what a validation draws."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from keras_preempt import PreemptionCallback
from keras_preempt.state.handover import UnclaimedValues
from tests import fits
from tests.cluster.small_fit import STEPS, fit, make_data

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


def made(names: tuple[str, str], kind: type[Twins] = Twins, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = kind(names)
    model.compile(keras.optimizers.SGD(0.01, name="sgd"), jit_compile=False, **options)
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


def test_an_untraceable_fit_is_resumed_to_the_bit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
    assert "and keeps what it remembers in variables; the input" in caplog.text


def test_a_value_that_no_variable_claims_is_an_error_that_names_it(tmp_path: Path) -> None:
    class Fewer(Twins):
        """Has the second layer when it is saved, and not any more when it is resumed."""

        def last(self, x: Any) -> Any:
            return x

    fit(tmp_path, model=made(("one", "two"), run_eagerly=True), strike=(0, 2))
    fewer = made(("one", "two"), Fewer, run_eagerly=True)
    with pytest.raises(UnclaimedValues, match=r"Received: .* that none has claimed: .*two/kernel"):
        fit(tmp_path, model=fewer)


UNSEEN = "exact if the validation step, whose code refers to random numbers or Python functions"
AT_ONCE = "exact after a preemption: the validation step"


class Plain(keras.Model):
    def __init__(self) -> None:
        super().__init__(name="validated")
        self.dense = keras.layers.Dense(1, name="dense")

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.dense(inputs)


class Own(Plain):
    def test_step(self, data: Any) -> Any:
        x, y = data
        return {"error": keras.ops.mean(keras.ops.abs(self(x) - y))}


class OwnOfKeras(Plain):
    """Validates with noise whose state is saved."""

    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(3)

    def test_step(self, data: Any) -> Any:
        x, y = data
        return {"error": keras.ops.mean(self(x + keras.random.normal((4, 2), seed=self.seed)) - y)}


def _noise(x: Any) -> Any:
    return tf.random.normal(tf.shape(x))


class OwnThroughOthers(Plain):
    """Validates with noise that a method draws by a function."""

    def test_step(self, data: Any) -> Any:
        return {"error": keras.ops.mean(self.predicted(data[0]) - data[1])}

    def predicted(self, x: Any) -> Any:
        return self(x + _noise(x))


class OwnInPython(Plain):
    def test_step(self, data: Any) -> Any:
        x, y = data
        unseen = tf.ensure_shape(tf.numpy_function(lambda each: each, [x], tf.float32), x.shape)
        return {"error": keras.ops.mean(self(unseen) - y)}


class RandomWithoutTraining(Plain):
    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.dense(inputs if training else inputs + tf.random.normal(tf.shape(inputs)))


class RandomAlways(Plain):
    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.dense(inputs + tf.random.normal(tf.shape(inputs)))


def train(model: keras.Model, *callbacks: keras.callbacks.Callback, **options: Any) -> None:
    fits.forget()
    keras.utils.set_random_seed(1)
    model.compile(keras.optimizers.Adam(name="adam"), "mse", jit_compile=False, **options)
    data = make_data().take(2)
    model.fit(data, validation_data=data, epochs=2, shuffle=False, verbose=0, callbacks=list(callbacks))


@pytest.mark.parametrize(
    ("kind", "before", "at_once"),
    [
        (Plain, "bit-identical", ""),
        (Own, "bit-identical", ""),
        (OwnOfKeras, "bit-identical", ""),
        (OwnThroughOthers, UNSEEN, "NOT exact after a preemption: the validation step draws random numbers"),
        (OwnInPython, UNSEEN, "Perhaps not exact after a preemption: the validation step runs Python code"),
        (RandomWithoutTraining, "bit-identical", "NOT exact after a preemption: the validation step draws"),
        (RandomAlways, "NOT exact after a preemption: exact except: the training step draws", ""),
    ],
)
def test_what_a_validation_draws_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: type[keras.Model], before: str, at_once: str
) -> None:
    train(kind(), PreemptionCallback(tmp_path))
    (promised,) = [line for line in caplog.messages if "Watching over" in line]
    assert before in promised
    told = [line for line in caplog.messages if AT_ONCE in line]
    assert [at_once in line for line in told] == [True] * bool(at_once)
    if kind is OwnThroughOthers:
        assert re.search(r"RandomStandardNormal in \w+ \(test_own_steps.py:", told[0])


@pytest.mark.parametrize("strategy", [None, "mirrored"])
def test_looking_at_a_validation_traces_nothing_anew(tmp_path: Path, strategy: str | None) -> None:
    traces: list[bool] = []

    class Counted(Own):
        def test_step(self, data: Any) -> Any:
            traces.append(tf.executing_eagerly())
            return super().test_step(data)

    def count(*callbacks: keras.callbacks.Callback) -> int:
        traces.clear()
        here = tf.distribute.get_strategy() if strategy is None else tf.distribute.MirroredStrategy(["CPU:0"])
        with here.scope():
            train(Counted(), *callbacks)
        return len(traces)

    assert count() == count(PreemptionCallback(tmp_path)) > 0
    assert not any(traces)


def test_an_eager_validation_is_not_looked_at(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(OwnThroughOthers(), PreemptionCallback(tmp_path), run_eagerly=True)
    assert AT_ONCE not in caplog.text
    assert "exact if the training step and the validation step, which cannot be looked at" in caplog.text
