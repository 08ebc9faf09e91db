"""Trains small models in many ways on one device, on two replicas of one process or on two workers.

Usage: ``fit_cases.py {one,mirrored,workers} OUTPUT``. Writes ``OUTPUT/<strategy>-<worker>.json``: for each
case what the model logged, how many steps it made, its weights and its predictions.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_preempt.backend.tensorflow.multi_worker_fit import enable_multi_worker_fit

kind, output = sys.argv[1], Path(sys.argv[2])
worker = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)

# Before the strategy, as a user does: detecting the defects must not start TensorFlow, or it cannot be made.
enable_multi_worker_fit()
strategy: Any = None
if kind == "workers":
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
elif kind == "mirrored":
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

# 9 batches of 8 and one of 4.
X = np.random.RandomState(0).rand(76, 3).astype("float32")
Y = X.sum(axis=1, keepdims=True)
SAMPLES = tf.data.Dataset.from_tensor_slices((X, Y))


class OwnStep(keras.Model):  # type: ignore[misc]
    """Has a train_step of its own, which logs a vector and a whole number."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"value": loss, "vector": tf.stack([loss, 2 * loss]), "number": tf.constant(4)}


def plain(normalised: bool = False) -> Any:
    between = [keras.layers.BatchNormalization()] if normalised else []
    hidden = keras.layers.Dense(4, activation="relu")
    return keras.Sequential([keras.Input((3,)), hidden, *between, keras.layers.Dense(1)])


class Recorder(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Any] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.batches.append([batch])

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        steps = int(self.model.optimizer.iterations.numpy())
        self.batches[-1] += [batch, steps, {k: np.asarray(v).tolist() for k, v in logs.items()}]


def train(
    make: Any, dataset: Any, steps: int, *, eagerly: bool = False, scaled: bool = False, **fit: Any
) -> dict[str, Any]:
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = make()
        metrics = None if make is OwnStep else ["mae"]
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()) if scaled else "adam"
        model.compile(optimizer, "mse", metrics=metrics, steps_per_execution=steps, run_eagerly=eagerly)
    recorder = Recorder()
    history = model.fit(dataset, epochs=2, verbose=0, shuffle=False, callbacks=[recorder], **fit)
    result = {
        "batches": recorder.batches,
        "history": {k: np.asarray(v).tolist() for k, v in history.history.items()},
        "evaluate": model.evaluate(dataset.take(5), verbose=0),
        "weights": [w.numpy().tolist() for w in model.trainable_weights],
    }
    # Batch statistics are each replica's own: first by replica of this process.
    values = [strategy.experimental_local_results(v.value) if strategy else (v,) for v in model.variables]
    result["of_replicas"] = [
        [v[replica].numpy().tolist() for v in values] for replica in range(len(values[0]))
    ]
    if "validation_data" in fit:
        result["predict"] = model.predict(batches, verbose=0).tolist()
        # A batch given by hand is not split: every replica gets all of it.
        result["train_on_batch"] = model.train_on_batch(X[:8], Y[:8])
        result["test_on_batch"] = model.test_on_batch(X[:8], Y[:8])
        result["predict_on_batch"] = model.predict_on_batch(X[:8])[:8].tolist()
    return result


# One sample, of the second replica's half of a batch, at which gradients overflow.
OVERFLOWS = X.copy()
OVERFLOWS[20] = 1e20

batches = SAMPLES.batch(8)
shuffled = SAMPLES.shuffle(76, seed=5).batch(8)
cases = {
    "finite, 1": lambda: train(plain, batches, 1, validation_data=batches),
    "finite, 3": lambda: train(plain, batches, 3, validation_data=batches),
    "full batches, 3": lambda: train(plain, SAMPLES.batch(8, drop_remainder=True), 3),
    "endless, 3": lambda: train(plain, batches.repeat(), 3, steps_per_epoch=4),
    "unknown length, 3": lambda: train(plain, batches.filter(lambda x, y: True), 3),
    "overflow, 1": lambda: train(
        plain, tf.data.Dataset.from_tensor_slices((OVERFLOWS, Y)).batch(8), 1, scaled=True
    ),
    "own step, 3": lambda: train(OwnStep, batches, 3),
    "eagerly, 3": lambda: train(plain, batches.take(4), 3, eagerly=True),
    "normalised, shuffled, 3": lambda: train(lambda: plain(normalised=True), shuffled, 3),
}
results = {name: case() for name, case in cases.items()}
(output / f"{kind}-{worker}.json").write_text(json.dumps(results))
