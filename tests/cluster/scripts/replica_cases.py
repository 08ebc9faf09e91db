"""Trains small models in many ways on one device, on replicas of one process or on two workers.

Usage: ``replica_cases.py {one,one_mirrored,mirrored,mwms} OUTPUT CASE...``. Writes ``OUTPUT/<kind>-<worker>.json``:
for each case the logs of every step, History and the weights, and in some what the model does after it.

In the cases of float64, all numbers are sums of a few powers of two, and so is everything that is computed from them:
it is exact, whatever is added up first, on one device as on several replicas.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from strategies import make_strategy

from keras_preempt.backend.tensorflow.multi_worker_fit import enable_multi_worker_fit
from tests.fits import untuned

kind, output, asked = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
worker = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)

# Before the strategy, as a user does: detecting the defects must not start TensorFlow, or it cannot be made.
enable_multi_worker_fit()
strategy = make_strategy(kind)


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


class Recorder(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps of every execution its begin and end, how many updates the optimizer counts by then, and its logs."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Any] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.batches.append([batch])

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        updates = int(self.model.optimizer.iterations.numpy())
        self.batches[-1] += [batch, updates, {k: np.asarray(v).tolist() for k, v in logs.items()}]


def train(make: Any, optimizer: Any, dataset: Any, fit: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = make()
        model.compile(optimizer(), "mse", metrics=None if make is OwnStep else ["mae"], **options)
    recorder = Recorder()
    history = model.fit(dataset, epochs=2, verbose=0, shuffle=False, callbacks=[recorder], **fit).history
    return model, {
        "batches": recorder.batches,
        "history": {k: np.asarray(v).tolist() for k, v in history.items()},
        "weights": [w.numpy().tolist() for w in model.trainable_weights],
    }


def plain(normalised: bool = False) -> Any:
    between = [keras.layers.BatchNormalization()] if normalised else []
    hidden = keras.layers.Dense(4, activation="relu")
    return keras.Sequential([keras.Input((3,)), hidden, *between, keras.layers.Dense(1)])


# 9 batches of 8 and one of 4.
X = np.random.RandomState(0).rand(76, 3).astype("float32")
Y = X.sum(axis=1, keepdims=True)
SAMPLES = untuned(tf.data.Dataset.from_tensor_slices((X, Y)))
BATCHES = SAMPLES.batch(8)
# One sample, of the second replica's half of a batch, at which gradients overflow.
OVERFLOWS = X.copy()
OVERFLOWS[20] = 1e20


def use(
    make: Any, dataset: Any, steps: int, *, eagerly: bool = False, optimizer: Any = None, **fit: Any
) -> dict[str, Any]:
    """Trains a model, and uses it."""
    options = {"steps_per_execution": steps, "run_eagerly": eagerly}
    model, result = train(make, optimizer or keras.optimizers.Adam, dataset, fit, **options)
    result["evaluate"] = model.evaluate(dataset.take(5), verbose=0)
    # Batch statistics are each replica's own: first by replica of this process.
    values = [strategy.experimental_local_results(v.value) for v in model.variables]
    result["of_replicas"] = [
        [v[replica].numpy().tolist() for v in values] for replica in range(len(values[0]))
    ]
    if "validation_data" in fit:
        result["predict"] = model.predict(BATCHES, verbose=0).tolist()
        # A batch given by hand is not split: every replica gets all of it.
        result["train_on_batch"] = model.train_on_batch(X[:8], Y[:8])
        result["test_on_batch"] = model.test_on_batch(X[:8], Y[:8])
        result["predict_on_batch"] = model.predict_on_batch(X[:8])[:8].tolist()
    return result


def linear() -> Any:
    """Begins with zeros, which are exact as well."""
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros")])


def embedded() -> Any:
    """Its gradients come as the slices of a table that a batch has looked up."""
    table = keras.layers.Embedding(3, 2, embeddings_initializer="ones")
    tail = [keras.layers.Flatten(), keras.layers.Dense(1, kernel_initializer="ones")]
    return keras.Sequential([keras.Input((3,)), keras.layers.Rescaling(1, offset=1), table, *tail])


GENERATOR = np.random.RandomState(0)
EXACT = GENERATOR.randint(-1, 2, (40, 3)), GENERATOR.randint(-2, 3, (40, 1))  # 5 steps an epoch


def branch(
    optimizer: Callable[[], Any],
    *,
    make: Callable[[], Any] = linear,
    floats: str = "float64",
    policy: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Trains with an optimizer that does not do the same in every step."""
    earlier = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx(floats)
    keras.config.set_dtype_policy(policy or floats)
    data = tf.data.Dataset.from_tensor_slices(tuple(values.astype(floats) for values in EXACT))
    _, result = train(make, optimizer, untuned(data.batch(8)), {}, **options)
    keras.config.set_floatx(earlier[0])
    keras.config.set_dtype_policy(earlier[1])
    return result


def scaled(optimizer: Any) -> Any:
    """Scales by a power of two, so that what is exact stays so; grows every third step."""
    return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**8, dynamic_growth_steps=3)


Adam, SGD, RATE = keras.optimizers.Adam, keras.optimizers.SGD, 0.25
EMA = {"use_ema": True, "ema_momentum": 0.5}
BOTH = {"gradient_accumulation_steps": 4, "ema_overwrite_frequency": 2, **EMA}
cases = {
    "finite, 1": lambda: use(plain, BATCHES, 1, validation_data=BATCHES),
    "finite, 3": lambda: use(plain, BATCHES, 3, validation_data=BATCHES),
    "full batches, 3": lambda: use(plain, SAMPLES.batch(8, drop_remainder=True), 3),
    "endless, 3": lambda: use(plain, BATCHES.repeat(), 3, steps_per_epoch=4),
    "unknown length, 3": lambda: use(plain, BATCHES.filter(lambda x, y: True), 3),
    "overflow, 1": lambda: use(
        plain,
        tf.data.Dataset.from_tensor_slices((OVERFLOWS, Y)).batch(8),
        1,
        optimizer=lambda: keras.optimizers.LossScaleOptimizer(Adam()),
    ),
    "own step, 3": lambda: use(OwnStep, BATCHES, 3),
    "eagerly, 3": lambda: use(plain, BATCHES.take(4), 3, eagerly=True),
    "normalised, shuffled, 3": lambda: use(
        lambda: plain(normalised=True), SAMPLES.shuffle(76, seed=5).batch(8), 3
    ),
    "accumulated": lambda: branch(lambda: SGD(RATE, gradient_accumulation_steps=4)),
    "overwritten": lambda: branch(lambda: SGD(RATE, ema_overwrite_frequency=4, **EMA)),
    "both": lambda: branch(lambda: SGD(RATE, momentum=0.5, nesterov=True, **BOTH)),
    "weight decay, both": lambda: branch(lambda: SGD(RATE, weight_decay=0.125, **BOTH)),
    "loss scale, both": lambda: branch(lambda: scaled(SGD(RATE, **BOTH))),
    "three steps per execution, both": lambda: branch(lambda: SGD(RATE, **BOTH), steps_per_execution=3),
    "eagerly, both": lambda: branch(lambda: SGD(RATE, **BOTH), run_eagerly=True),
    "embedding, accumulated": lambda: branch(
        lambda: SGD(RATE / 64, gradient_accumulation_steps=4), make=embedded
    ),
    # Not exact, and so the same but for rounding.
    "rounded: Adam, both": lambda: branch(lambda: Adam(0.01, **BOTH)),
    "rounded: Nadam, both": lambda: branch(lambda: keras.optimizers.Nadam(0.01, **BOTH)),
    "rounded: float32": lambda: branch(lambda: keras.optimizers.AdamW(0.01, **BOTH), floats="float32"),
    "rounded: float16": lambda: branch(
        lambda: scaled(Adam(0.01, **BOTH)), floats="float32", policy="mixed_float16"
    ),
    # Keras clips the gradients of each replica before it adds them up: only replicas are like replicas.
    "clipped: norm": lambda: branch(lambda: SGD(RATE, clipnorm=0.5, **BOTH)),
    "clipped: global norm": lambda: branch(lambda: SGD(RATE, global_clipnorm=0.5, **BOTH)),
}
(output / f"{kind}-{worker}.json").write_text(json.dumps({name: cases[name]() for name in asked}))
