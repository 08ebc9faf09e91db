"""Trains with gradient accumulation and with averages that overwrite the weights, and writes every bit of it.

Usage: ``branch_cases.py {one,one_mirrored,mirrored,workers} OUTPUT``. Writes ``OUTPUT/<strategy>-<worker>.json``: for
each case the logs of every step, History and the weights; or, for one that fails, the name of the error.

All numbers are sums of a few powers of two, and so is everything that is computed from them in float64: it is exact,
whatever is added up first, on one device as on several replicas.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_preempt.backend.tensorflow.multi_worker_fit import enable_multi_worker_fit

kind, output = sys.argv[1], Path(sys.argv[2])
worker = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)

enable_multi_worker_fit()
strategy: Any = None
if kind == "workers":
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
elif kind != "one":
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"][: 1 if kind == "one_mirrored" else 2])

SGD, EMA = keras.optimizers.SGD, {"use_ema": True, "ema_momentum": 0.5}
RATE = 0.25
generator = np.random.RandomState(0)
X = generator.randint(-1, 2, (40, 3)).astype("float64")
Y = generator.randint(-2, 3, (40, 1)).astype("float64")
DATA = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)  # 5 steps an epoch


class Steps(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps the logs of every step, and how many updates the optimizer counts by then."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        logs = {name: np.asarray(value).tolist() for name, value in logs.items()}
        updates = int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))
        self.kept.append([batch, updates, logs])


def linear() -> Any:
    """Begins with zeros, which are exact as well."""
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros")])


def embedded() -> Any:
    """Its gradients come as the slices of a table that a batch has looked up."""
    table = keras.layers.Embedding(3, 2, embeddings_initializer="ones")
    tail = [keras.layers.Flatten(), keras.layers.Dense(1, kernel_initializer="ones")]
    return keras.Sequential([keras.Input((3,)), keras.layers.Rescaling(1, offset=1), table, *tail])


def train(
    optimizer: Callable[[], Any],
    *,
    make: Callable[[], Any] = linear,
    floats: str = "float64",
    policy: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    keras.config.set_floatx(floats)
    keras.config.set_dtype_policy(policy or floats)
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = make()
        model.compile(optimizer(), "mse", metrics=["mae"], **options)
    steps = Steps()
    data = DATA.map(lambda x, y: (tf.cast(x, floats), tf.cast(y, floats)))
    history = model.fit(data, epochs=2, verbose=0, shuffle=False, callbacks=[steps])
    weights = [weight.numpy().tolist() for weight in model.trainable_weights]
    return {"steps": steps.kept, "history": history.history, "weights": weights}


def scaled(optimizer: Any) -> Any:
    """Scales by a power of two, so that what is exact stays so; grows every third step."""
    return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**8, dynamic_growth_steps=3)


BOTH = {"gradient_accumulation_steps": 4, "ema_overwrite_frequency": 2, **EMA}
cases = {
    "accumulated": lambda: train(lambda: SGD(RATE, gradient_accumulation_steps=4)),
    "overwritten": lambda: train(lambda: SGD(RATE, ema_overwrite_frequency=4, **EMA)),
    "both": lambda: train(lambda: SGD(RATE, momentum=0.5, nesterov=True, **BOTH)),
    "weight decay, both": lambda: train(lambda: SGD(RATE, weight_decay=0.125, **BOTH)),
    "loss scale, both": lambda: train(lambda: scaled(SGD(RATE, **BOTH))),
    "three steps per execution, both": lambda: train(lambda: SGD(RATE, **BOTH), steps_per_execution=3),
    "eagerly, both": lambda: train(lambda: SGD(RATE, **BOTH), run_eagerly=True),
    "embedding, accumulated": lambda: train(
        lambda: SGD(RATE / 64, gradient_accumulation_steps=4), make=embedded
    ),
    # Not exact, and so the same but for rounding.
    "rounded: Adam, both": lambda: train(lambda: keras.optimizers.Adam(0.01, **BOTH)),
    "rounded: Nadam, both": lambda: train(lambda: keras.optimizers.Nadam(0.01, **BOTH)),
    "rounded: float32": lambda: train(lambda: keras.optimizers.AdamW(0.01, **BOTH), floats="float32"),
    "rounded: float16": lambda: train(
        lambda: scaled(keras.optimizers.Adam(0.01, **BOTH)), floats="float32", policy="mixed_float16"
    ),
    # Keras clips the gradients of each replica before it adds them up: only replicas are like replicas.
    "clipped: norm": lambda: train(lambda: SGD(RATE, clipnorm=0.5, **BOTH)),
    "clipped: global norm": lambda: train(lambda: SGD(RATE, global_clipnorm=0.5, **BOTH)),
}
results = {name: case() for name, case in cases.items()}
(output / f"{kind}-{worker}.json").write_text(json.dumps(results))
