"""Callbacks that change what is trained: a restarted run trains what plain Keras would have gone on training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_preempt import Preempted, PreemptionCallback, TerminationConfig
from tests import fits
from tests.preempted import Strike, Striker

X = np.random.default_rng(3).normal(size=(24, 4)).astype("float32")
Y = X[:, :1] * 2


class Changing(keras.callbacks.Callback):
    """Remembers what was trained at the begin of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.seen.append("".join("01"[layer.trainable] for layer in self.model.layers))


class Thawing(Changing):
    """One layer more in each epoch, from the last one on."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.layers[-1 - epoch].trainable = True


class Passing(Changing):
    """Each layer in an epoch of its own: what was trained before is not any more."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        for number, layer in enumerate(self.model.layers):
            layer.trainable = number == epoch


class AtTheEnd(Changing):
    """Freezes when an epoch has ended, one layer more each time."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.layers[epoch].trainable = False


class Toggling(Changing):
    """Goes by what it finds."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        for layer in self.model.layers[:2]:
            layer.trainable = not layer.trainable


def train(
    directory: Path, kind: type[Changing], strike: Strike | None, *, plain: bool = False, eager: bool = False
) -> list[Any] | None:
    """A start of the script in a new process; None if it was preempted."""
    fits.forget()
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    for layer in layers:
        layer.trainable = kind is not Thawing
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss="mse", run_eagerly=eager)
    changing = kind()
    config = TerminationConfig(exit_fn=lambda: None)
    ours = [] if plain else [PreemptionCallback(directory, termination=config), Striker(strike, directory)]
    options = {"batch_size": 8, "epochs": 3, "verbose": 0, "validation_data": (X, Y)}
    try:
        history = model.fit(X, Y, callbacks=[*ours, changing], **options).history
    except Preempted:
        return None
    variables = [*model.weights, *model.optimizer.variables]
    return [[np.array(each).tobytes() for each in variables], history, changing.seen]


STEP, VALIDATION, EPOCH = ("on_train_batch_begin", 7), ("on_test_batch_begin", 4), ("on_epoch_begin", 2)
IN_SHORT = ((Passing, STEP), (Passing, VALIDATION), (AtTheEnd, STEP), (Toggling, EPOCH))


@pytest.mark.parametrize(
    ("kind", "strike"),
    [
        pytest.param(kind, strike, marks=() if (kind, strike) in IN_SHORT else pytest.mark.chaos)
        for kind in (Thawing, Passing, AtTheEnd, Toggling)
        for strike in (STEP, VALIDATION, EPOCH)
    ],
)
def test_a_restarted_run_trains_what_the_undisturbed_one_does(
    kind: type[Changing], strike: Strike, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = train(tmp_path, kind, None, plain=True)
    assert train(tmp_path, kind, strike) is None
    assert train(tmp_path, kind, None) == expected
    (line,) = {each.partition(". ")[2] for each in caplog.messages if "After a preemption" in each}
    assert "trainable" not in line


def test_where_a_callback_may_have_the_step_traced_anew_that_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Anew(AtTheEnd):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            super().on_epoch_end(epoch, logs)
            self.trace()

        def trace(self) -> None:
            self.model.make_train_function(force=True)

    assert train(tmp_path, Anew, ("on_train_batch_begin", 2)) is None
    assert "exact except" in caplog.text
    assert "trainable (in Anew)" in caplog.text


def test_so_does_one_that_trains_eagerly(tmp_path: Path) -> None:
    expected = train(tmp_path, AtTheEnd, None, plain=True, eager=True)
    assert train(tmp_path, AtTheEnd, ("on_train_batch_begin", 7), eager=True) is None
    assert train(tmp_path, AtTheEnd, None, eager=True) == expected


def test_a_script_that_has_lost_its_callback_goes_on(tmp_path: Path) -> None:
    assert train(tmp_path, AtTheEnd, ("on_train_batch_begin", 2), eager=True) is None
    assert train(tmp_path, Changing, None, eager=True) is not None
