"""Two workers that train until the test takes one of them away, or one that dies while fit builds its model.

Run as: losses.py DIRECTORY train|build|again. Prints ``TF_CONFIG <json>``, ``RAN <batch>`` after each step, and
``RAISED <type>`` with what left the fit, which then leaves the program.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

DIRECTORY, PLACE = sys.argv[1:]
MEMBER = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
print("TF_CONFIG", os.environ["TF_CONFIG"], flush=True)
if PLACE == "again":  # Another process in the place of a worker: it joins when it is told to.
    sys.stdin.readline()
STRATEGY = tf.distribute.MultiWorkerMirroredStrategy()

import keras  # noqa: E402  the strategy comes first
import numpy as np  # noqa: E402

from keras_preempt import PreemptionCallback  # noqa: E402

STEPS = 20_000


class Dies(keras.layers.Layer):
    """Ends the process of worker 1 when it is built, which fit does before it calls a callback."""

    def build(self, shape):
        if PLACE == "build" and MEMBER == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def call(self, x):
        return x


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print("RAN", batch, flush=True)
        time.sleep(0.02)

    def get_state(self):
        return {}

    def set_state(self, state):
        pass


def main():
    data = tf.data.Dataset.from_tensors((np.ones((4, 4), "float32"), np.ones((4, 1), "float32"))).repeat()
    with STRATEGY.scope():
        model = keras.Sequential([Dies(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    callbacks = [PreemptionCallback(DIRECTORY), Slow()]
    try:
        model.fit(data, steps_per_epoch=STEPS, verbose=0, callbacks=callbacks)
    except BaseException as error:
        print("RAISED", type(error).__name__, flush=True)
        raise


main()
