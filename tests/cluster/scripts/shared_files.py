"""Two workers with callbacks that write files: ``shared_files.py {same,own,first} DIRECTORY``."""

from __future__ import annotations

import contextlib
import json
import os
import sys

import keras
import numpy as np

from keras_preempt import PreemptionCallback

how, directory = sys.argv[1:]
on_jax = keras.backend.backend() == "jax"
if on_jax:
    import jax

    keras.distribution.initialize()
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    keras.utils.set_random_seed(1)
    worker, scope = jax.process_index(), contextlib.nullcontext()
else:
    import tensorflow as tf

    worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    scope = tf.distribute.MultiWorkerMirroredStrategy().scope()
with scope:
    layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((2,)), *layers])
    model.compile("adam", "mse", metrics=["mae"])
number = worker if how == "own" else ""
writing = [
    keras.callbacks.ModelCheckpoint(f"best{number}.keras"),
    keras.callbacks.ModelCheckpoint(f"best{number}.weights.h5", save_weights_only=True),
    keras.callbacks.CSVLogger(f"log{number}.csv"),
]
if how == "first" and worker > 0:
    writing = []
x = np.ones((16, 2))
# Nothing is written in a fit of which no epoch ends: what is looked for is what is said before. On JAX a model that one
# process saves alone would end it.
epochs = 0 if how == "same" or (on_jax and how == "first") else 2
callbacks = [*writing, PreemptionCallback(directory)]
model.fit(x, x[:, 0], batch_size=8, epochs=epochs, verbose=0, callbacks=callbacks)
