"""A small training run that is continued on other numbers of workers, and what it held where it went on.

Run as: other_workers.py OUTPUT DIRECTORY [--strategy one|mirrored|mwms] [--batch 8] ...
Each sample has a number. Metrics add up how many samples an epoch has seen, their numbers and the squares of these:
whole numbers, so that they tell exactly whether an epoch has used each sample once.
"""

from __future__ import annotations

import argparse
import json
import sys

import numpy as np
import tensorflow as tf
from strategies import make_strategy

SAMPLES = 48

PARSER = argparse.ArgumentParser()
PARSER.add_argument("output")
PARSER.add_argument("directory")
PARSER.add_argument("--strategy", default="one", choices=["one", "mirrored", "mwms"])
PARSER.add_argument("--batch", type=int, default=8, help="of all replicas together")
PARSER.add_argument("--policy", default="AUTO", help="a name of tf.data.experimental.AutoShardPolicy")
ARGS = PARSER.parse_args()


STRATEGY = make_strategy(ARGS.strategy)

import keras  # noqa: E402  the strategy comes first
from marks import MEMBER, Marks  # noqa: E402

import keras_preempt  # noqa: E402
from tests.fits import Doing  # noqa: E402


class Seen(keras.metrics.Metric):
    """Adds up a power of the numbers of the samples; they come first in the labels."""

    def __init__(self, power: int, name: str) -> None:
        super().__init__(name=name)
        self._power = power
        self.sum = self.add_weight(shape=(), initializer="zeros", name="sum")

    def update_state(self, y, logits, sample_weight=None):
        self.sum.assign_add(tf.reduce_sum(tf.cast(y[:, 0], tf.float32) ** self._power))

    def result(self):
        return tf.identity(self.sum)


class Snapshot(Doing):
    """Keeps the values of all variables on the replicas here: before the first step, and after the latest."""

    def __init__(self) -> None:
        super().__init__()
        self._resumed = False

    def on_train_batch_begin(self, batch, logs=None):
        if not self._resumed:
            self._resumed = True
            self.keep("resumed")

    def on_train_batch_end(self, batch, logs=None):
        self.keep("left")

    def keep(self, moment: str) -> None:
        groups = (self.model.variables, self.model.optimizer.variables, self.model.metrics_variables)
        arrays = {}
        for group, variables in enumerate(groups):
            for number, variable in enumerate(variables):
                parts = STRATEGY.experimental_local_results(variable.value)
                values = np.stack([np.asarray(part) for part in parts])
                arrays[f"{group} {number} {variable.path}"] = values
        np.savez(f"{ARGS.output}.{moment}.{MEMBER}.npz", **arrays)


def make_data() -> tf.data.Dataset:
    rng = np.random.default_rng(7)
    labels = np.arange(SAMPLES) % 3
    x = rng.normal(size=(SAMPLES, 6)).astype("float32") + 4.0 * np.eye(3, 6, dtype="float32")[labels]
    y = np.stack([np.arange(SAMPLES), labels], axis=1).astype("int32")
    options = tf.data.Options()
    options.autotune.enabled = False  # See `tests.fits.untuned`.
    options.experimental_distribute.auto_shard_policy = getattr(
        tf.data.experimental.AutoShardPolicy, ARGS.policy
    )
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(SAMPLES, seed=5)
    return data.batch(ARGS.batch, drop_remainder=True).prefetch(2).with_options(options)


def main() -> None:
    keras.utils.set_random_seed(11)
    data = make_data()
    with STRATEGY.scope():
        layers = keras.layers
        inputs = keras.Input((6,))
        h = layers.BatchNormalization(momentum=0.5)(layers.Dense(8, trainable=False, name="frozen")(inputs))
        h = layers.Dropout(0.2)(layers.Dense(16, activation="relu")(h))
        model = keras.Model(inputs, layers.Dense(3)(h))
        of_logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        def label(y):
            # Keras builds the model with the mean of what the replicas get, which is no whole number.
            return tf.cast(y[:, 1], tf.int32)

        def accuracy(y, logits):
            return tf.cast(tf.equal(label(y), tf.argmax(logits, axis=1, output_type=tf.int32)), tf.float32)

        model.compile(
            optimizer=keras.optimizers.Adam(0.02),
            loss=lambda y, logits: of_logits(label(y), logits),
            metrics=[
                keras.metrics.MeanMetricWrapper(accuracy, name="accuracy"),
                Seen(0, name="samples"),
                Seen(1, name="numbers"),
                Seen(2, name="squares"),
            ],
        )
    preemption = keras_preempt.PreemptionCallback(ARGS.directory)
    marks = Marks(ARGS.directory, True, 0.0)
    history = model.fit(data, epochs=5, callbacks=[marks, preemption, Snapshot()], shuffle=False, verbose=0)
    with open(f"{ARGS.output}.{MEMBER}.json", "w") as stream:
        json.dump(history.history, stream, sort_keys=True)


if __name__ == "__main__":
    main()
    sys.exit(0)
