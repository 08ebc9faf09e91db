"""A training step reads what callbacks set before it, as in plain Keras, and the log says what a restart reads anew."""

from __future__ import annotations

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

WEIGHT = 1.0


class Weighted(keras.losses.Loss):
    """Multiplied by plain Python values, which a trace keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.beta, self.betas = 1.0, {"a": 1.0}

    def call(self, y_true: Any, y_pred: Any) -> Any:
        error = keras.ops.mean((y_true - y_pred) ** 2, axis=-1)
        return error * self.beta * self.betas["a"] * WEIGHT


class Scaled(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.first = keras.layers.Dense(8, activation="relu")
        self.out = keras.layers.Dense(1)
        self.kl_weight, self.weights_of = 1.0, [1.0]

    def call(self, x: Any) -> Any:
        return self.out(self.first(x))

    def compute_loss(self, *arguments: Any, **named: Any) -> Any:
        return super().compute_loss(*arguments, **named) * self.kl_weight * self.weights_of[0]

    def anneal(self, value: float) -> None:
        self.kl_weight = value


class Annealing(keras.callbacks.Callback):
    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """There is none."""


class OfModel(Annealing):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.kl_weight = 0.1 * (epoch + 1)


class OfBatch(Annealing):
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 0:
            self.model.kl_weight = 0.3


class ByMethod(Annealing):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.anneal(np.float32(0.2))


class OfLoss(Annealing):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        loss = self.model.loss
        loss.beta = 0.4


class OfDictionary(Annealing):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.loss.betas["a"] = 0.4


class OfList(Annealing):
    def on_train_begin(self, logs: Any = None) -> None:
        self.model.weights_of[0] = 0.5


class OfFoundItem(Annealing):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.weights_of[min(0, epoch)] = 0.5


class OfScript(Annealing):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        global WEIGHT
        WEIGHT = 0.6


class Unfreezing(Annealing):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        for layer in self.model.layers:
            layer.trainable = True


class UnfreezingInAStep(Annealing):
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.first.trainable = True


class ByName(Annealing):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        setattr(self.model, "kl_" + "weight", 0.7)


class Recording(keras.callbacks.Callback):
    """Sets what a step does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, list[float]] = {}
        self.best = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.rows["rates"] = []
        self.best = epoch
        setattr(self, "best", epoch)  # noqa: B010
        self.model.optimizer.learning_rate = 0.05

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["rate"] = float(self.model.optimizer.learning_rate)
        self.rows["rates"] += [logs["rate"]]
        self.model.stop_training = False


def script(callback: keras.callbacks.Callback, directory: Path | None, place: int = 0) -> list[Any]:
    """Trains as in a new process; returns the weights and the History."""
    global WEIGHT
    WEIGHT = 1.0
    fits.forget()
    keras.utils.set_random_seed(1)
    model = Scaled()
    model.first.trainable = not isinstance(callback, Unfreezing)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), loss=Weighted())
    callbacks = [callback]
    if directory is not None:
        callbacks.insert(place, PreemptionCallback(directory))
    history = model.fit(X, Y, batch_size=4, epochs=3, verbose=0, callbacks=callbacks)
    return [*(weight.tobytes() for weight in model.get_weights()), history.history]


@pytest.mark.parametrize(
    "kind",
    [
        *(OfBatch, ByMethod, OfDictionary, Unfreezing, Recording),
        *(
            pytest.param(kind, marks=pytest.mark.chaos)
            for kind in (OfModel, OfLoss, OfList, OfScript, ByName)
        ),
    ],
)
def test_the_step_reads_what_callbacks_set_before_it(kind: type[Annealing], tmp_path: Path) -> None:
    plain = script(kind(), None)
    assert script(kind(), tmp_path / "first") == plain
    assert script(kind(), tmp_path / "last", place=1) == plain


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (OfModel, "kl_weight (in OfModel)"),
        (ByMethod, "kl_weight (in ByMethod)"),
        (OfFoundItem, "weights_of (in OfFoundItem)"),
        (UnfreezingInAStep, "trainable (in UnfreezingInAStep)"),
        (Recording, ""),
    ],
)
def test_what_a_restarted_step_reads_anew_is_told(
    kind: type[keras.callbacks.Callback], told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script(kind(), tmp_path)
    (line,) = (each for each in caplog.messages if "After a preemption" in each)
    if told:
        assert f": what callbacks set of other objects, if the training step reads it: {told}." in line
    else:
        assert "other objects" not in line
        assert "cannot be looked at" not in line, "the step was not traced before it ran"


def test_a_step_that_could_not_be_looked_at_before_is_looked_at_after_the_first_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Noisy(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return x + tf.random.normal(tf.shape(x))

    model = keras.Sequential([keras.Input((4,)), Noisy(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(X, Y, epochs=2, verbose=0, callbacks=[Unfreezing(), PreemptionCallback(tmp_path)])
    told = [each for each in caplog.messages if "tf.random" in each]
    assert len(told) == 1
    assert told[0].startswith("NOT exact after a preemption: the training step draws random numbers")


def test_a_variable_that_a_callback_assigns_and_no_model_holds_is_kept(tmp_path: Path) -> None:
    weight = keras.Variable(1.0, name="kl_weight")

    class Scales(keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return keras.ops.mean((y_true - y_pred) ** 2, axis=-1) * weight

    class Assigns(Annealing):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            weight.assign(weight / 2)

    def train(directory: Path | None, epochs: int) -> list[bytes]:
        """Trains on as a restarted process, in which the variable begins with its first value."""
        fits.forget()
        keras.utils.clear_session()
        weight.assign(1.0)
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), loss=Scales())
        ours = [] if directory is None else [PreemptionCallback(directory)]
        model.fit(X, Y, batch_size=4, epochs=epochs, verbose=0, callbacks=[Assigns(), *ours])
        return [each.tobytes() for each in model.get_weights()]

    plain = train(None, 4)
    train(tmp_path, 2)
    assert train(tmp_path, 4) == plain
    assert float(weight) == 1 / 16
