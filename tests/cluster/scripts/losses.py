"""Two workers, of which one is lost: by the test, by itself, or by the other.

Run as: losses.py DIRECTORY WAY. Prints ``TF_CONFIG <json>``, ``RAN <batch>`` after each step, and ``RAISED <type>``
with what left the fit, which then leaves the program; or ``ENDED <sum of the weights' bytes>`` when it has finished.

| way | what happens |
|---|---|
| train | it trains until the test takes a worker away |
| again | as another process in the place of a worker: it joins when it is told to |
| build | worker 1 is killed while fit builds the model |
| none | nothing: the run that those below are compared with, under the launcher |
| frozen | the first start: worker 0 is stopped (SIGSTOP) for longer than a heartbeat takes |
| build again | worker 0 is preempted; the second start: worker 1 is killed while fit builds the model |
| resumed | worker 0 is preempted; the second start: worker 1 is killed at the end of the resumed epoch |
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time

import tensorflow as tf

DIRECTORY, WAY = sys.argv[1:]
MEMBER = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
START = int(os.environ.get("KERAS_PREEMPT_LAUNCHER_INCARNATION", 0))
print("TF_CONFIG", os.environ["TF_CONFIG"], flush=True)
if WAY == "again":
    sys.stdin.readline()
STRATEGY = tf.distribute.MultiWorkerMirroredStrategy()

import keras  # noqa: E402  the strategy comes first
import numpy as np  # noqa: E402

from keras_preempt import PreemptionCallback  # noqa: E402
from tests.cluster.small_fit import InEpochs  # noqa: E402

STEPS, BATCH = 6, 8
FOREVER = 20_000 if WAY in ("train", "again") else None
PID = f"{DIRECTORY}.pid of worker 0"


class Dies(keras.layers.Layer):
    """Ends the process of worker 1 when it is built, which fit does before it calls a callback."""

    def build(self, shape):
        if (WAY, START, MEMBER) in (("build", 0, 1), ("build again", 1, 1)):
            os.kill(os.getpid(), signal.SIGKILL)

    def call(self, x):
        return x


class Lost(InEpochs):
    def on_train_batch_end(self, batch, logs=None):
        print("RAN", batch, flush=True)
        if FOREVER:
            time.sleep(0.02)
        place = (WAY, START, MEMBER, self.epoch, batch)
        if place == ("frozen", 0, 1, 1, 3):
            with open(PID) as file:
                os.kill(int(file.read()), signal.SIGSTOP)
        if place in (("build again", 0, 0, 1, 2), ("resumed", 0, 0, 1, 2)):
            os.kill(os.getpid(), signal.SIGTERM)
        if place == ("resumed", 1, 1, 1, STEPS - 1):
            os.kill(os.getpid(), signal.SIGKILL)


def main():
    if MEMBER == 0:
        with open(PID, "w") as file:
            file.write(str(os.getpid()))
    keras.utils.set_random_seed(3)
    x = np.random.default_rng(0).normal(size=(STEPS * BATCH, 4)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(STEPS * BATCH, seed=5).batch(BATCH)
    options = tf.data.Options()
    options.autotune.enabled = False  # See `tests.fits.untuned`.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = (data.repeat() if FOREVER else data).with_options(options)
    with STRATEGY.scope():
        model = keras.Sequential([Dies(), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    callbacks = [PreemptionCallback(DIRECTORY, save_every=2 if WAY == "frozen" else None), Lost()]
    try:
        model.fit(data, steps_per_epoch=FOREVER, epochs=3, verbose=0, callbacks=callbacks)
    except BaseException as error:
        print("RAISED", type(error).__name__, flush=True)
        raise
    weights = b"".join(np.asarray(weight).tobytes() for weight in model.get_weights())
    print("ENDED", hashlib.sha256(weights).hexdigest(), flush=True)


main()
