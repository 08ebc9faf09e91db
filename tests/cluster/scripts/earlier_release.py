"""A small job with much to keep, whose directories `tests/formats` holds as earlier releases have written them.

Run as: earlier_release.py END [--directory DIRECTORY] [--strike EPOCH BATCH]

It leaves everything it ended with in the file END. Without a directory it trains without the PreemptionCallback. It
uses the public interface alone, and works with every release since 0.1.0.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

CLUSTER = json.loads(os.environ.get("TF_CONFIG", "{}"))
MEMBER, WORKERS = (
    (int(CLUSTER["task"]["index"]), len(CLUSTER["cluster"]["worker"])) if "cluster" in CLUSTER else (0, 1)
)
# The strategy comes before everything that makes a variable.
STRATEGY = tf.distribute.MultiWorkerMirroredStrategy() if WORKERS > 1 else tf.distribute.get_strategy()

import keras  # noqa: E402

import keras_preempt  # noqa: E402

EPOCHS, STEPS, BATCH = 3, 4, 4


class Strike(keras.callbacks.Callback):
    """Sends the last worker SIGTERM before one batch."""

    def __init__(self, epoch: int, batch: int) -> None:
        super().__init__()
        self._at = (epoch, batch)
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if (self._epoch, batch) == self._at and MEMBER == WORKERS - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


def make_data() -> tuple[tf.data.Dataset, tf.data.Dataset]:
    x = np.random.default_rng(7).normal(size=(STEPS * BATCH, 2)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True)))
    return data.shuffle(16, seed=5).batch(BATCH, drop_remainder=True), data.batch(BATCH)


def make_model() -> keras.Model:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((2,)),
            layers.Dense(3, activation="relu", name="hidden"),
            layers.BatchNormalization(name="norm"),
            layers.Dropout(0.25, seed=3, name="dropout"),
            layers.Dense(1, name="last"),
        ],
        name="small",
    )
    model.compile(keras.optimizers.Adam(0.05, name="adam"), "mse", metrics=["mae"])
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("end")
    parser.add_argument("--directory")
    parser.add_argument("--strike", nargs=2, type=int)
    args = parser.parse_args()
    keras.utils.set_random_seed(11)
    with STRATEGY.scope():
        model = make_model()
    train, validation = make_data()
    callbacks: list[keras.callbacks.Callback] = [
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=10.0),
        keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: np.random.normal(random.random())),
    ]
    if args.strike:
        callbacks.append(Strike(*args.strike))
    if args.directory:
        callbacks.append(keras_preempt.PreemptionCallback(args.directory))
    history = model.fit(train, validation_data=validation, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    end = {f"{v.path}": np.asarray(v) for v in (*model.variables, *model.optimizer.variables)}
    end.update({f"history/{name}": np.asarray(values) for name, values in history.history.items()})
    end["random"] = np.asarray([random.random(), np.random.normal()])
    np.savez(f"{args.end}-w{MEMBER}.npz", **end)


main()
