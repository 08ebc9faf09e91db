"""What the code of a user's callback could do is read, and nothing of it is called."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest

from keras_preempt.state.callback_code import TEST_HOOKS, HookCode
from keras_preempt.state.callbacks import CallbackStates

SHOWN: list[str] = []


def swap_outside(model: keras.Model) -> None:
    model.load_weights("averages.weights.h5")


class Averages:
    """Moving averages of weights, as a helper that a callback holds."""

    def swap(self) -> None:
        self.inner()

    def inner(self) -> None:
        for variable in []:
            variable.assign(0)


class OwnOptimizer(keras.optimizers.SGD):
    def evaluate_with_averages(self) -> None:
        for variable in self._trainable_variables:
            variable.assign(variable)


class Calls(keras.callbacks.Callback):
    def on_test_begin(self, logs: Any = None) -> None:
        swap_outside(self.model)


class CallsItself(keras.callbacks.Callback):
    def on_test_end(self, logs: Any = None) -> None:
        self.back()

    def back(self) -> None:
        [each.set_weights([]) for each in ()]


class ByName(keras.callbacks.Callback):
    def on_test_begin(self, logs: Any = None) -> None:
        getattr(self.model, "set_weights")([])  # noqa: B009


class Helped(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.averages = [Averages()]

    def on_test_begin(self, logs: Any = None) -> None:
        for each in self.averages:
            each.swap()


class AsksOptimizer(keras.callbacks.Callback):
    def on_test_begin(self, logs: Any = None) -> None:
        self.model.optimizer.evaluate_with_averages()


class Inherits(keras.callbacks.SwapEMAWeights):
    """Keras' own."""


class Inner(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.swaps = keras.callbacks.SwapEMAWeights()

    def on_test_begin(self, logs: Any = None) -> None:
        self.swaps.on_test_begin(logs)


class Unreadable(keras.callbacks.Callback):
    def on_test_begin(self, logs: Any = None) -> None:
        made_later(self.model)  # noqa: F821


class Looks(keras.callbacks.Callback):
    """Changes nothing."""

    def on_test_begin(self, logs: Any = None) -> None:
        self.seen: list[float] = []
        self.norm = float(np.mean([np.abs(weight).sum() for weight in self.model.get_weights()]))

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(logs["loss"])
        self._show("batch", batch=batch)

    def _show(self, what: str, **more: Any) -> None:
        SHOWN.append(f"{what} {self.model.predict(np.zeros((1, 2)), verbose=0)} {more}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.set_weights([])


class Saves(keras.callbacks.ModelCheckpoint):
    def on_test_end(self, logs: Any = None) -> None:
        print(self.model.optimizer.learning_rate, logs)


def in_lambda(then: Any) -> keras.callbacks.Callback:
    return keras.callbacks.LambdaCallback(on_test_begin=lambda logs: then(None))


def with_model(callback: keras.callbacks.Callback) -> keras.callbacks.Callback:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(OwnOptimizer(), "mse")
    callback.set_model(model)
    return callback


@pytest.mark.parametrize(
    "callback",
    [
        *(Calls(), CallsItself(), ByName(), Helped(), AsksOptimizer(), Inner(), Unreadable(), Inherits()),
        in_lambda(swap_outside),
        in_lambda(functools.partial(swap_outside)),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_weights_that_a_validation_could_change_are_found(callback: keras.callbacks.Callback) -> None:
    assert CallbackStates([with_model(callback)]).change_weights


@pytest.mark.parametrize(
    "callback",
    [
        *(Looks(), Saves("m.keras"), keras.callbacks.EarlyStopping(), keras.callbacks.TensorBoard()),
        in_lambda(print),
        in_lambda(SHOWN.append),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_callbacks_that_only_look_are_told_from_them(callback: keras.callbacks.Callback) -> None:
    assert not HookCode(with_model(callback), TEST_HOOKS).may_change_weights
    assert SHOWN == []


def test_the_class_has_the_last_word() -> None:
    class Denies(Calls):
        changes_weights_in_validation = False

    class Says(Looks):
        changes_weights_in_validation = True

    assert not CallbackStates([with_model(Denies())]).change_weights
    assert CallbackStates([with_model(Says())]).change_weights
