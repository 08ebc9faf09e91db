"""Trains on mirrored replicas of one process without the repairs, with them, and when they are undone.

Usage: ``branches_unrepaired.py REPLICAS``. Writes ``needed: <bool>``, and a line for each:
``what: name of the error`` or ``what: trained``.
"""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_preempt import enable_multi_worker_fit
from keras_preempt.backend.tensorflow.repairs import APPLY_GRADIENTS, REPAIRS

replicas = int(sys.argv[1])
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
strategy = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])
OPTIONS: dict[str, dict[str, Any]] = {
    "accumulated": {"gradient_accumulation_steps": 2},
    "overwritten": {"use_ema": True, "ema_overwrite_frequency": 2},
}


def train(what: str, options: dict[str, Any]) -> None:
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(**options), "mse")
    try:
        model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=4, verbose=0)
    except RuntimeError as error:
        print(f"{what}: {type(error).__name__}", flush=True)
    else:
        print(f"{what}: trained", flush=True)


(repair,) = (repair for repair in REPAIRS if repair.target is APPLY_GRADIENTS)
print(f"needed: {repair.needed()}", flush=True)
for name, options in OPTIONS.items():
    train(name, options)
    with enable_multi_worker_fit():
        train(f"{name}, repaired", options)
    train(f"{name}, undone", options)
