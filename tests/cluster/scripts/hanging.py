"""Trains, and hangs in one start after the other; prints ``ENDED <sum of the weights' bytes>`` when it has finished.

Run as: hanging.py DIRECTORY WAYS, with the way of each start, separated by commas. Worker 1 of two hangs, or else the
only one; the last start has no way and ends.

| way | what happens |
|---|---|
| stop | it is stopped by SIGSTOP |
| loop | it does not come back from C code that holds the GIL |
| wait | it calls no collective any more |
| data | its input has no next batch |
| slow | nothing hangs: its first step, the end of an epoch and a step of a validation take SLOW seconds |
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import sys
import threading
import time

import tensorflow as tf

DIRECTORY, WAYS = sys.argv[1], sys.argv[2].split(",")
START = int(os.environ.get("KERAS_PREEMPT_LAUNCHER_INCARNATION", 0))
CLUSTER = json.loads(os.environ.get("TF_CONFIG", "{}"))
MEMBER = CLUSTER["task"]["index"] if CLUSTER else 0
HANGS = (1 if CLUSTER else 0) == MEMBER
WAY = WAYS[START] if len(WAYS) > START else ""
SLOW = float(os.environ.get("SLOW", 0))
STRATEGY = tf.distribute.MultiWorkerMirroredStrategy() if CLUSTER else tf.distribute.get_strategy()

import keras  # noqa: E402  the strategy comes first
import numpy as np  # noqa: E402

from keras_preempt import PreemptionCallback  # noqa: E402
from tests import fits  # noqa: E402
from tests.cluster.small_fit import InEpochs  # noqa: E402

EPOCHS, STEPS, BATCH = 3, 8, 8
AT = 5 + 4 * START
"""The step in which it hangs; it has trained a few steps in each start then."""


def wait() -> None:
    threading.Event().wait()


def loop() -> None:
    re.match(r"(a|aa)+$", 80 * "a" + "b")


class Hangs(InEpochs):
    keeps_state = False

    def __init__(self):
        super().__init__()
        self.was_slow = set()

    def on_train_batch_end(self, batch, logs=None):
        if WAY and AT - 5 < self.epoch * STEPS + batch < AT:
            time.sleep(0.5)  # So that the launcher, which looks once a second, sees a step end.
        if HANGS and self.epoch * STEPS + batch == AT:
            if WAY == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            elif WAY == "wait":
                wait()
            elif WAY == "loop":
                loop()
        self.slow("step")

    def on_epoch_end(self, epoch, logs=None):
        self.slow("epoch")

    def on_test_batch_end(self, batch, logs=None):
        self.slow("validation")

    def slow(self, what):
        if WAY == "slow" and what not in self.was_slow:
            self.was_slow.add(what)
            time.sleep(SLOW)
            print("SLOW", what, flush=True)


def batches(x):
    for step in range(EPOCHS * STEPS):
        if HANGS and WAY == "data" and step == AT + 1:
            wait()
        part = x[step % STEPS * BATCH :][:BATCH]
        yield part, part[:, :1]


def main():
    keras.utils.set_random_seed(3)
    x = np.random.default_rng(0).normal(size=(STEPS * BATCH, 4)).astype("float32")
    signature = tf.TensorSpec((BATCH, 4)), tf.TensorSpec((BATCH, 1))
    data = tf.data.Dataset.from_generator(lambda: batches(x), output_signature=signature)
    if CLUSTER:
        data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(64, seed=5).repeat().batch(BATCH)
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        data = data.with_options(options)
    with STRATEGY.scope():
        model = keras.Sequential([keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    model.fit(
        fits.untuned(data),
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        verbose=0,
        validation_data=None if CLUSTER else (x, x[:, :1]),
        validation_batch_size=BATCH,
        callbacks=[PreemptionCallback(DIRECTORY, save_every=2), Hangs()],
    )
    weights = b"".join(np.asarray(weight).tobytes() for weight in model.get_weights())
    print("ENDED", hashlib.sha256(weights).hexdigest(), flush=True)


main()
