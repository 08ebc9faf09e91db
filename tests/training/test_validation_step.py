"""What a validation step draws is seen when it has first run, and said at once if a restart does not repeat it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from keras_preempt import PreemptionCallback
from tests import fits
from tests.cluster.small_fit import make_data

UNSEEN = "exact if the validation step, whose code refers to random numbers or Python functions"
AT_ONCE = "exact after a preemption: the validation step"


class Plain(keras.Model):
    """Validates by Keras' own step."""

    def __init__(self) -> None:
        super().__init__(name="validated")
        self.dense = keras.layers.Dense(1, name="dense")

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.dense(inputs)


class Own(Plain):
    """Validates by a step of its own."""

    def test_step(self, data: Any) -> Any:
        x, y = data
        return {"error": keras.ops.mean(keras.ops.abs(self(x) - y))}


class OwnAndRandom(Plain):
    """Validates with noise that begins again in each process."""

    def test_step(self, data: Any) -> Any:
        x, y = data
        return {"error": keras.ops.mean(self(x + tf.random.normal(tf.shape(x))) - y)}


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
    """Validates with code that cannot be seen."""

    def test_step(self, data: Any) -> Any:
        x, y = data
        unseen = tf.ensure_shape(tf.numpy_function(lambda each: each, [x], tf.float32), x.shape)
        return {"error": keras.ops.mean(self(unseen) - y)}


class RandomWithoutTraining(Plain):
    """Draws only where it does not train."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.dense(inputs if training else inputs + tf.random.normal(tf.shape(inputs)))


class RandomAlways(Plain):
    """Draws in both."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.dense(inputs + tf.random.normal(tf.shape(inputs)))


def validate(directory: Path, model: keras.Model, **options: Any) -> None:
    fits.forget()
    keras.utils.set_random_seed(1)
    model.compile(keras.optimizers.Adam(name="adam"), "mse", **options)
    data = make_data()
    callback = PreemptionCallback(directory)
    model.fit(data, validation_data=data, epochs=3, shuffle=False, verbose=0, callbacks=[callback])


@pytest.mark.parametrize(
    ("kind", "before", "at_once"),
    [
        (Plain, "bit-identical", ""),
        (Own, "bit-identical", ""),
        (OwnOfKeras, "bit-identical", ""),
        (OwnThroughOthers, UNSEEN, "NOT exact after a preemption: the validation step draws random numbers"),
        (OwnAndRandom, UNSEEN, "NOT exact after a preemption: the validation step draws random numbers"),
        (OwnInPython, UNSEEN, "Perhaps not exact after a preemption: the validation step runs Python code"),
        (RandomWithoutTraining, "bit-identical", "NOT exact after a preemption: the validation step draws"),
        (RandomAlways, "NOT exact after a preemption: exact except: the training step draws", ""),
    ],
)
def test_what_a_validation_draws_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: type[keras.Model], before: str, at_once: str
) -> None:
    caplog.set_level(logging.INFO, "keras_preempt")
    model = kind()
    validate(tmp_path, model)
    (promised,) = [line for line in caplog.messages if "Watching over" in line]
    assert before in promised
    told = [line for line in caplog.messages if AT_ONCE in line]
    assert [at_once in line for line in told] == [True] * bool(at_once)
    if kind is OwnAndRandom:
        assert "RandomStandardNormal in test_step (test_validation_step.py:" in told[0]


@pytest.mark.parametrize("strategy", [None, "mirrored"])
def test_looking_at_a_validation_traces_nothing_anew(tmp_path: Path, strategy: str | None) -> None:
    traces: list[bool] = []

    class Counted(Own):
        def test_step(self, data: Any) -> Any:
            traces.append(tf.executing_eagerly())
            return super().test_step(data)

    def count(directory: Path) -> int:
        traces.clear()
        here = tf.distribute.get_strategy() if strategy is None else tf.distribute.MirroredStrategy(["CPU:0"])
        with here.scope():
            model = Counted()
            if directory.name == "plain":
                model.compile(keras.optimizers.Adam(name="adam"), "mse")
                model.fit(make_data(), validation_data=make_data(), epochs=3, shuffle=False, verbose=0)
            else:
                validate(directory, model)
        return len(traces)

    assert count(tmp_path / "plain") == count(tmp_path / "watched") > 0
    assert not any(traces)


def test_an_eager_validation_is_not_looked_at(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "keras_preempt")
    validate(tmp_path, OwnAndRandom(), run_eagerly=True)
    assert AT_ONCE not in caplog.text
    assert "exact if the training step and the validation step, which cannot be looked at" in caplog.text
