"""Trains without repairs, with them, and when they are undone; says what came of each.

Usage: ``unrepaired.py {mwms,mirrored}``. Lines: ``<what> needed: <bool>`` for each repair, ``<what>: trained``, or
``<what>: <name of the error>``.

Two workers train without one repair, each in turn but the last: without that of the loss scaling, they would wait for
each other for ever. Mirrored replicas of one process, one and two, train without any, with all, and without any again.
"""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from strategies import make_strategy, two_devices

from keras_preempt.backend.tensorflow import multi_worker_fit as keras_repairs
from keras_preempt.backend.tensorflow.repairs import APPLY_GRADIENTS, REPAIRS

OPTIONS: dict[str, dict[str, Any]] = {
    "accumulated": {"gradient_accumulation_steps": 2},
    "overwritten": {"use_ema": True, "ema_overwrite_frequency": 2},
}


def train(what: str, strategy: Any, options: dict[str, Any], **compiled: Any) -> None:
    dataset = tf.data.Dataset.from_tensor_slices((np.ones((16, 3)), np.ones((16, 1)))).batch(4)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(**options), "mse", **compiled)
    try:
        model.fit(dataset, verbose=0)
    except (ValueError, RuntimeError, tf.errors.InvalidArgumentError) as error:
        print(f"{what}: {type(error).__name__}", flush=True)
    else:
        print(f"{what}: trained", flush=True)


if sys.argv[1] == "mwms":
    strategy = make_strategy("mwms")
    for number, repair in enumerate(REPAIRS[:-1]):
        print(f"{number} needed: {repair.needed()}", flush=True)
    # In this order: the first three fail before a step runs; the fourth leaves the cluster's collectives in error.
    for number, repair in enumerate(REPAIRS[:-1]):
        keras_repairs.REPAIRS = tuple(r for r in REPAIRS if r is not repair)
        with keras_repairs.enable_multi_worker_fit():
            train(str(number), strategy, OPTIONS["accumulated"], steps_per_execution=2)
else:
    both = two_devices()
    (repair,) = (repair for repair in REPAIRS if repair.target is APPLY_GRADIENTS)
    print(f"mirrored needed: {repair.needed()}", flush=True)
    for devices in (both[:1], both):
        strategy = tf.distribute.MirroredStrategy(devices)
        for name, options in OPTIONS.items():
            what = f"{len(devices)} {name}"
            train(what, strategy, options)
            with keras_repairs.enable_multi_worker_fit():
                train(f"{what}, repaired", strategy, options)
            train(f"{what}, undone", strategy, options)
