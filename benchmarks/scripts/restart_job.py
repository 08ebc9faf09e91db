"""The job of `restart.py`: notes when it comes how far, trains until it is preempted, and ends after some starts.

Run as: FOLDER small|large STARTS; with STARTS 0 in plain Keras, which ends after one step.
"""

from __future__ import annotations

import time

marks = {"script": time.monotonic()}

import json  # noqa: E402 - The first line of the script comes before its imports.
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import keras  # noqa: E402
import numpy as np  # noqa: E402

import keras_preempt  # noqa: E402

marks["imported"] = time.monotonic()

folder, size, starts = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
incarnation = int(os.environ.get("KERAS_PREEMPT_LAUNCHER_INCARNATION", "0"))
worker = int(os.environ.get("KERAS_PREEMPT_WORKER", "0"))


def scope() -> object:
    """Finds the other workers, if there are any."""
    import contextlib

    if keras.backend.backend() == "jax":
        if "KERAS_DISTRIBUTION_NUM_PROCESSES" in os.environ:
            keras.distribution.initialize()
            keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
        return contextlib.nullcontext()
    import tensorflow as tf

    if "TF_CONFIG" in os.environ:
        return tf.distribute.MultiWorkerMirroredStrategy().scope()
    return contextlib.nullcontext()


def small() -> keras.Model:
    """A convolutional network of some thousand parameters."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(10),
        ]
    )


def large() -> keras.Model:
    """One of 100 million parameters."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Flatten(),
            *(layers.Dense(5000, activation="relu") for _ in range(5)),
            layers.Dense(10),
        ]
    )


class Marks(keras.callbacks.Callback):
    """Notes the first step; after that, steps are slow, so that the machine is idle as beside a GPU."""

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        marks.setdefault("training", time.monotonic())

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if "step" not in marks:
            marks["step"] = time.monotonic()
            partial = folder / f"{incarnation}-{worker}.part"
            partial.write_text(json.dumps(marks))
            partial.rename(partial.with_suffix(".json"))
        if incarnation >= starts - 1:
            self.model.stop_training = True
        else:
            time.sleep(0.05)


keras.utils.set_random_seed(1)
with scope():
    model = {"small": small, "large": large}[size]()
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
random = np.random.default_rng(1)
x = random.random((32 * 10_000, 8, 8, 1), dtype=np.float32)
y = random.integers(0, 10, len(x)).astype(np.int32)
marks["built"] = time.monotonic()
callbacks = [keras_preempt.PreemptionCallback(str(folder / "run"))] if starts else []
model.fit(x, y, batch_size=16, epochs=1, verbose=0, callbacks=[*callbacks, Marks()])
