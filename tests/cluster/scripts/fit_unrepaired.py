"""Tries to train on two workers without one repair, each in turn but the last; writes one line for each.

Without the last one, that of the loss scaling, they would wait for each other for ever.

Usage: ``fit_unrepaired.py``. Lines: ``<number> needed: <bool>``, then ``without <number>: <what was raised>``.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from keras_preempt.backend.tensorflow import multi_worker_fit as keras_repairs
from keras_preempt.backend.tensorflow.repairs import REPAIRS

strategy = tf.distribute.MultiWorkerMirroredStrategy()
dataset = tf.data.Dataset.from_tensor_slices((np.ones((16, 3)), np.ones((16, 1)))).batch(4)

for number, repair in enumerate(REPAIRS[:-1]):
    print(f"{number} needed: {repair.needed()}", flush=True)

# In this order: the first three fail before a step runs; the fourth leaves the cluster's collectives in error.
for number, repair in enumerate(REPAIRS[:-1]):
    keras_repairs.REPAIRS = tuple(r for r in REPAIRS if r is not repair)
    with keras_repairs.enable_multi_worker_fit():
        with strategy.scope():
            model = keras.Sequential([keras.layers.Dense(1)])
            optimizer = keras.optimizers.Adam(gradient_accumulation_steps=2)
            model.compile(optimizer, "mse", steps_per_execution=2)
        try:
            model.fit(dataset, verbose=0)
        except (ValueError, RuntimeError, tf.errors.InvalidArgumentError) as error:
            print(f"without {number}: {type(error).__name__} {' '.join(str(error).split())}", flush=True)
        else:
            print(f"without {number}: nothing", flush=True)
