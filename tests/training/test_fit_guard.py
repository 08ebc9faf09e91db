"""Every error that leaves a fit is seen on its way, none that stays in it, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_preempt.backend.tensorflow import feed


class Guarded(keras.callbacks.Callback):
    """Guards its fit, and raises an error at one place of it."""

    def __init__(self, place: str, settle: Callable[[BaseException], BaseException]) -> None:
        super().__init__()
        self._place = place
        self._settle = settle
        self.end: Callable[[], None] = lambda: None

    def _fail(self, place: str) -> None:
        if place == self._place:
            raise ValueError(place)

    def on_train_begin(self, logs: Any = None) -> None:
        fit = feed.running_fit(self.model)
        self.end = fit.guard(self._settle)
        if "resumed" in self._place:
            fit.logs_of_an_epoch_without_steps({"loss": 1.0}, of_step=True)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._fail("epoch begin")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._fail("batch begin")
        if self._place == "no batch left":
            raise StopIteration

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._fail("batch end")
        if self._place == "taken by a callback":
            with pytest.raises(ZeroDivisionError):
                self.model.evaluate(np.ones((2, 2)), np.ones((2, 1)), verbose=0, callbacks=[Divides()])

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._fail("validation")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._fail("epoch end")


class Divides(keras.callbacks.Callback):
    def on_test_begin(self, logs: Any = None) -> None:
        raise ZeroDivisionError


def loss(y: Any, prediction: Any) -> Any:
    tf.debugging.assert_less(tf.reduce_max(y), 2.0)
    return tf.reduce_mean((y - prediction) ** 2)


class Failing(keras.Model):
    """Fails where fit reads its metrics after an epoch, or resets them before one."""

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


def fit(place: str, settle: Callable[[BaseException], BaseException]) -> tuple[keras.Model, Guarded]:
    model = Failing()
    model.place = place
    model.compile("sgd", loss)
    guarded = Guarded(place, settle)
    y = np.full((4, 1), 3.0 if place == "step" else 1.0, "float32")
    data = tf.data.Dataset.from_tensor_slices((np.ones((4, 2), "float32"), y)).batch(2)
    model.fit(data, validation_data=data, shuffle=False, verbose=0, callbacks=[guarded])
    return model, guarded


@pytest.mark.parametrize(
    "place",
    [
        "epoch begin",
        "batch begin",
        "step",
        "batch end",
        "validation",
        "epoch end",
        "resetting metrics",
        "reading metrics",
        "reading metrics, resumed",
    ],
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

    def settle(error: BaseException) -> BaseException:
        seen.append(error)
        return error

    model, guarded = fit(place, settle)
    assert seen == []
    assert {"evaluate", "reset_metrics", "_get_metrics_result_or_logs"} <= set(vars(model))
    guarded.end()
    guarded.end()
    assert not {"evaluate", "reset_metrics", "_get_metrics_result_or_logs"} & set(vars(model))
