"""Small fits in this process, and a record of a directory, for tests of what a fit refuses."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_preempt import Preempted, PreemptionCallback, TerminationConfig
from tests import fits

if TYPE_CHECKING:
    import tensorflow as tf

STEPS, BATCH = 4, 4

_STRUCK_STEP = 0.2
"""Seconds that the step lasts in which the signal comes. One of a millisecond, as the others, may be over before the
notice is answered; then it costs one more."""


def contents(directory: Path) -> dict[str, bytes | None]:
    """Everything below a directory: the bytes of files, None for folders."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


def await_(done: Callable[[], Any], patience: float = 240.0, message: str = "") -> None:
    """Waits for what cannot be waited for, only looked at: a file, or a list that another thread fills."""
    limit = time.monotonic() + patience
    while not done():
        assert time.monotonic() < limit, message
        time.sleep(0.01)


class InEpochs(fits.Doing):
    """Knows which epoch it is."""

    epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch


class Then(InEpochs):
    """Does something after one step."""

    def __init__(self, after: tuple[int, int], do: Callable[[], object]) -> None:
        super().__init__()
        self._after, self._do = after, do

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == self._after:
            self._do()


class Steps(InEpochs):
    """Records the steps run; sends this process SIGTERM before one of them."""

    def __init__(self, strike: tuple[int, int] | None = None) -> None:
        super().__init__()
        self._strike = strike
        self.run: list[tuple[int, int]] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == self._strike:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(_STRUCK_STEP)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.run.append((self.epoch, batch))


def make_model(units: int = 3) -> keras.Model:
    # Named, because Keras counts on within a process, which would make it another model.
    layers = [keras.layers.Dense(units, name="hidden"), keras.layers.Dense(1, name="last")]
    model = keras.Sequential([keras.Input((2,)), *layers], name="small")
    model.compile(keras.optimizers.Adam(name="adam"), "mse")
    return model


@functools.cache
def _compiled() -> tuple[keras.Model, list[tuple[keras.Variable, np.ndarray[Any, Any]]]]:
    keras.utils.set_random_seed(1)
    model = make_model()
    model.optimizer.build(model.trainable_variables)
    return model, [(each, np.array(each)) for each in (*model.variables, *model.optimizer.variables)]


def model_anew() -> keras.Model:
    """The model as it was when it was made. It is compiled once: a fit costs little more than its steps."""
    model, initial = _compiled()
    for variable, value in initial:
        variable.assign(value)
    return model


def make_data(batch: int = BATCH) -> tf.data.Dataset:
    import tensorflow as tf  # Here, since what trains on torch uses the rest.

    x = np.arange(STEPS * BATCH * 2, dtype="float32").reshape(-1, 2)
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(batch, drop_remainder=True)
    return fits.untuned(data)


def fit(
    directory: str | os.PathLike[str],
    *,
    model: keras.Model | None = None,
    batch: int = BATCH,
    epochs: int = 2,
    strike: tuple[int, int] | None = None,
    more: Sequence[keras.callbacks.Callback] = (),
    validation: tf.data.Dataset | None = None,
    **options: Any,
) -> list[tuple[int, int]]:
    """Trains in this process; returns the steps run, as (epoch, batch), also if it was preempted.

    `options` are those of the PreemptionCallback; without a `termination` among them a preemption does not end
    the process.
    """
    fits.forget()  # As a new process.
    steps = Steps(strike)
    callback = PreemptionCallback(
        directory, **{"termination": TerminationConfig(exit_fn=lambda: None), **options}
    )
    try:
        (model or make_model()).fit(
            make_data(batch),
            validation_data=validation,
            epochs=epochs,
            shuffle=False,
            verbose=0,
            callbacks=[steps, callback, *more],
        )
    except Preempted:
        assert strike is not None
    return steps.run
