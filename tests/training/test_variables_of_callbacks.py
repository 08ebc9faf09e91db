"""Before the first step the log names which variables of callbacks no checkpoint holds, and no others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_preempt import PreemptionCallback
from tests import fits

X = np.arange(64, dtype="float32").reshape(16, 4) / 64
Y = X.sum(axis=1, keepdims=True)

WEIGHT = keras.Variable(1.0, name="weight")
EPOCHS = tf.Variable(0)
SCORE = keras.Variable(1.0, name="score")


class Scales(keras.losses.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.mean((y_true - y_pred) ** 2, axis=-1) * WEIGHT


class Holds(keras.callbacks.Callback):
    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = weight

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.weight.assign(self.weight * 0.5)


class Lists(keras.callbacks.Callback):
    def __init__(self, *weights: Any) -> None:
        super().__init__()
        self.weights = list(weights)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for each in self.weights:
            each.assign(0.5)


class OfScript(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        WEIGHT.assign(0.5)


class Counts(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        EPOCHS.assign_add(1)


class Prints(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        print(float(SCORE))


class Measures(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.metric = keras.metrics.Mean()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.metric.update_state(1.0)


class Averages(keras.callbacks.Callback):
    """Keeps moving averages of the weights in another model."""

    def __init__(self, average: keras.Model) -> None:
        super().__init__()
        self.average = average

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        for slow, fast in zip(self.average.weights, self.model.weights, strict=True):
            slow.assign(0.9 * slow + 0.1 * fast)


class Predicts(keras.callbacks.Callback):
    def __init__(self, other: keras.Model) -> None:
        super().__init__()
        self.other = other

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.other.predict(X, verbose=0)


def small() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])


trained = functools.cache(small)


def said(callback: keras.callbacks.Callback, directory: Path, caplog: Any, *, eager: bool = False) -> str:
    fits.forget()
    trained().compile("sgd", Scales(), run_eagerly=eager)
    trained().fit(
        X, Y, epochs=1, shuffle=False, verbose=0, callbacks=[callback, PreemptionCallback(directory)]
    )
    (line,) = (each for each in caplog.messages if "After a preemption" in each)
    return str(line)


@pytest.mark.parametrize(
    "make",
    [
        *(lambda: Holds(WEIGHT), lambda: Lists(WEIGHT), OfScript, Prints, lambda: Predicts(small())),
        *(lambda: Holds(trained().weights[1]), lambda: Averages(trained())),
    ],
)
def test_nothing_is_said_of_variables_that_a_checkpoint_holds_or_no_hook_changes(
    make: Callable[[], keras.callbacks.Callback], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert "bit-identical" in said(make(), tmp_path, caplog)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Holds(tf.Variable(1.0)), "Holds (its attribute weight: ResourceVariable)"),
        (lambda: Lists(WEIGHT, keras.Variable(1.0)), "Lists (its attribute weights: Variable)"),
        (Counts, "Counts (the variable EPOCHS outside of it)"),
        (Measures, "Measures (its attribute metric: Mean)"),
        (lambda: Averages(small()), "Averages (its attribute average: Sequential)"),
    ],
)
def test_variables_that_no_checkpoint_holds_are_named(
    make: Callable[[], keras.callbacks.Callback], told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert f"not kept over a restart: {told}." in said(make(), tmp_path, caplog)


def test_what_an_eager_step_reads_is_not_known_before_it_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line = said(OfScript(), tmp_path, caplog, eager=True)
    assert "OfScript (the variable WEIGHT outside of it)" in line
