"""A fit with small steps, in one epoch that nobody waits for to end, and a notice in step 100.

Run as: short_grace.py DIRECTORY SECONDS, with the length of the grace period.
"""

from __future__ import annotations

import os
import signal
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from keras_preempt import PreemptionCallback, TerminationConfig

DIRECTORY, SECONDS = sys.argv[1:]


class Notice(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 100:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.02)

    def get_state(self):
        return {}

    def set_state(self, state):
        pass


keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = np.ones((20_000, 2), "float32")
termination = TerminationConfig(grace_period=float(SECONDS))
model.fit(
    x,
    x[:, :1],
    batch_size=1,
    shuffle=False,
    verbose=0,
    callbacks=[Notice(), PreemptionCallback(DIRECTORY, termination=termination)],
)
