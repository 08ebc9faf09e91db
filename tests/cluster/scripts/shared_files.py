"""Two workers with callbacks that write files: ``shared_files.py {same,own,first} DIRECTORY``."""

from __future__ import annotations

import json
import os
import sys

import keras
import numpy as np
import tensorflow as tf

from keras_preempt import PreemptionCallback

how, directory = sys.argv[1:]
worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
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
# Nothing is written in a fit of which no epoch ends: what is looked for is what is said before.
epochs = 0 if how == "same" else 2
callbacks = [*writing, PreemptionCallback(directory)]
model.fit(x, x[:, 0], batch_size=8, epochs=epochs, verbose=0, callbacks=callbacks)
