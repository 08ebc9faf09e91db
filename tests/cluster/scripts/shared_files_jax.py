"""Two processes on JAX with callbacks that write files: ``shared_files_jax.py {same,own,first} DIRECTORY``."""

from __future__ import annotations

import sys

import jax
import keras
import numpy as np

from keras_preempt import PreemptionCallback

how, directory = sys.argv[1:]
keras.distribution.initialize()
keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
keras.utils.set_random_seed(1)
process = jax.process_index()
layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
model = keras.Sequential([keras.Input((2,)), *layers])
model.compile("adam", "mse", metrics=["mae"])
number = process if how == "own" else ""
writing = [
    keras.callbacks.ModelCheckpoint(f"best{number}.keras"),
    keras.callbacks.ModelCheckpoint(f"best{number}.weights.h5", save_weights_only=True),
    keras.callbacks.CSVLogger(f"log{number}.csv"),
]
if how == "first" and process > 0:
    writing = []
x = np.ones((16, 2))
# Nothing is written in a fit of which no epoch ends: what is looked for is what is said before.
epochs = 2 if how == "own" else 0
callbacks = [*writing, PreemptionCallback(directory)]
model.fit(x, x[:, 0], batch_size=8, epochs=epochs, verbose=0, callbacks=callbacks)
