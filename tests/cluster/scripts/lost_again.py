"""Two workers under the launcher, one of which is lost in the second or third start, and nothing else happens.

Run as: lost_again.py DIRECTORY none|frozen|build|resumed. Prints ``RAN <epoch> <batch>`` after each step, and
``ENDED <sum of the weights' bytes>`` when training has finished.

| way | what happens |
|---|---|
| none | nothing: the run that the others are compared with |
| frozen | the first start: worker 0 is stopped (SIGSTOP) for longer than a heartbeat takes |
| build | worker 0 is preempted; the second start: worker 1 is killed while fit builds the model |
| resumed | worker 0 is preempted; the second start: worker 1 is killed at the end of the resumed epoch |
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

DIRECTORY, WAY = sys.argv[1:]
MEMBER = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
START = int(os.environ["KERAS_PREEMPT_LAUNCHER_INCARNATION"])
STRATEGY = tf.distribute.MultiWorkerMirroredStrategy()

import keras  # noqa: E402  the strategy comes first
import numpy as np  # noqa: E402

from keras_preempt import PreemptionCallback  # noqa: E402

EPOCHS, STEPS, BATCH = 3, 6, 8
PIDS = Path(DIRECTORY).with_name("pids")


class Dies(keras.layers.Layer):
    """Ends the process of worker 1 when the second start builds it."""

    def build(self, shape):
        if (WAY, START, MEMBER) == ("build", 1, 1):
            os.kill(os.getpid(), signal.SIGKILL)

    def call(self, x):
        return x


class Lost(keras.callbacks.Callback):
    epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        print("RAN", self.epoch, batch, flush=True)
        place = (self.epoch, batch)
        if WAY == "frozen":
            if (START, MEMBER, *place) == (0, 1, 1, 3):
                os.kill(int((PIDS / "0").read_text()), signal.SIGSTOP)
        elif WAY != "none" and (START, MEMBER, *place) == (0, 0, 1, 2):
            os.kill(os.getpid(), signal.SIGTERM)
        if WAY == "resumed" and (START, MEMBER, *place) == (1, 1, 1, STEPS - 1):
            os.kill(os.getpid(), signal.SIGKILL)

    def get_state(self):
        return {}

    def set_state(self, state):
        pass


def main():
    PIDS.mkdir(exist_ok=True)
    (PIDS / str(MEMBER)).write_text(str(os.getpid()))
    keras.utils.set_random_seed(3)
    x = np.random.default_rng(0).normal(size=(STEPS * BATCH, 4)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(STEPS * BATCH, seed=5).batch(BATCH)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    with STRATEGY.scope():
        model = keras.Sequential([Dies(), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    callback = PreemptionCallback(DIRECTORY, save_every=2 if WAY == "frozen" else None)
    model.fit(data.with_options(options), epochs=EPOCHS, verbose=0, callbacks=[callback, Lost()])
    weights = b"".join(np.asarray(weight).tobytes() for weight in model.get_weights())
    print("ENDED", hashlib.sha256(weights).hexdigest(), flush=True)


main()
