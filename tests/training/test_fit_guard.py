"""Every error that leaves a fit is seen on its way, none that stays in it, and nothing is left behind."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_preempt.backend.tensorflow.backend import BACKEND
from tests import fits

HOOKS = {
    "epoch begin": "on_epoch_begin",
    "batch begin": "on_train_batch_begin",
    "batch end": "on_train_batch_end",
    "validation": "on_test_batch_end",
    "epoch end": "on_epoch_end",
}


def loss(y: Any, prediction: Any) -> Any:
    tf.debugging.assert_less(tf.reduce_max(y), 2.0)
    return tf.reduce_mean((y - prediction) ** 2)


class Failing(keras.Model):
    """Fails where fit reads its metrics after an epoch, or resets them before one, if that is the place."""

    place = ""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def get_metrics_result(self) -> Any:
        # Outside of a step, which reads them too.
        if self.place.startswith("reading metrics") and not tf.inside_function():
            raise ValueError(self.place)
        return super().get_metrics_result()

    def reset_metrics(self) -> None:
        if self.place == "resetting metrics":
            raise ValueError(self.place)
        super().reset_metrics()


@functools.cache
def failing() -> Failing:
    model = Failing()
    model.compile("sgd", loss, jit_compile=False)
    return model


Settle = Callable[[BaseException], BaseException]


def fit(place: str, settle: Settle, **hooks: Callable[..., None]) -> Callable[[], None]:
    """Guards a fit that fails at one place, and does something else in it; returns what ends the guard."""
    model, ends = failing(), []
    model.place = place

    def guard(logs: Any) -> None:
        running = BACKEND.running_fit(model)
        ends.append(running.guard(settle))
        if "resumed" in place:
            running.logs_of_an_epoch_without_steps({"loss": 1.0}, of_step=True)

    fails = mock.Mock(side_effect=ValueError(place))
    doing = fits.Doing(on_train_begin=guard, **hooks, **({HOOKS[place]: fails} if place in HOOKS else {}))
    y = np.full((4, 1), 3.0 if place == "step" else 1.0, "float32")
    data = tf.data.Dataset.from_tensor_slices((np.ones((4, 2), "float32"), y)).batch(2)
    model.fit(data, validation_data=data, shuffle=False, verbose=0, callbacks=[doing])
    return ends[0]


@pytest.mark.parametrize(
    "place", [*HOOKS, "step", "resetting metrics", "reading metrics", "reading metrics, resumed"]
)
@pytest.mark.parametrize("other", [False, True], ids=["the same", "another"])
def test_an_error_is_seen_once_and_the_one_to_raise_is_raised(place: str, other: bool) -> None:
    seen: list[BaseException] = []

    def settle(error: BaseException) -> BaseException:
        seen.append(error)
        return KeyError("of a peer") if other else error

    with pytest.raises(KeyError if other else (ValueError, tf.errors.InvalidArgumentError)) as raised:
        fit(place, settle)
    assert len({id(error) for error in seen}) == len(seen) == 1
    assert other or raised.value is seen[0]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("place", ["nowhere", "no batch left", "taken by a callback"])
def test_what_does_not_end_the_fit_is_not_seen_and_nothing_is_left(place: str) -> None:
    seen: list[BaseException] = []

    def evaluate(*_: Any, **__: Any) -> None:
        ones, fails = np.ones((2, 2)), fits.Doing(on_test_begin=fits.fail)
        with pytest.raises(KeyError):
            failing().evaluate(ones, ones[:, :1], verbose=0, callbacks=[fails])

    hooks: dict[str, dict[str, Any]] = {
        "no batch left": {"on_train_batch_begin": mock.Mock(side_effect=StopIteration)},
        "taken by a callback": {"on_train_batch_end": evaluate},
    }
    end = fit(place, lambda error: seen.append(error) or error, **hooks.get(place, {}))
    assert seen == []
    assert {"evaluate", "reset_metrics", "_get_metrics_result_or_logs"} <= set(vars(failing()))
    end()
    end()
    assert not {"evaluate", "reset_metrics", "_get_metrics_result_or_logs"} & set(vars(failing()))


def test_nothing_of_those_who_have_called_fit_is_kept_until_garbage_is_collected() -> None:
    """Such as an open file, whose last lines a process that is preempted would leave unwritten."""

    def train() -> weakref.ref[object]:
        mine = mock.Mock()
        fit("nowhere", lambda error: error)
        return weakref.ref(mine)

    gc.disable()
    try:
        kept = train()
        assert kept() is None
    finally:
        gc.enable()
