"""Two workers, one of which fails at one place of its fit; each says how its own fit ended.

Run as: failing.py DIRECTORY PLACE MEMBER. Prints ``FAILS <time>`` where it fails, ``RAISED <json>`` after the fit,
then ends with the error.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

import tensorflow as tf

DIRECTORY, PLACE, FAILING = sys.argv[1], sys.argv[2], int(sys.argv[3])
MEMBER = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
STRATEGY = tf.distribute.MultiWorkerMirroredStrategy()

import keras  # noqa: E402  the strategy comes first
import numpy as np  # noqa: E402

from keras_preempt import PreemptionCallback  # noqa: E402
from keras_preempt.checkpoint.errors import CheckpointError  # noqa: E402
from tests.cluster.small_fit import InEpochs  # noqa: E402

STEPS, STEP = 6, 4
ERRORS = {
    "hook": ValueError("the learning rate of step 4 is negative"),
    "own type": CheckpointError("a class that the others may not have"),
    "interrupt": KeyboardInterrupt(),
    "exit": SystemExit(3),
    "epoch end": tf.errors.DataLossError(None, None, "the table of the metrics is torn"),
    "last epoch end": ValueError("the report cannot be written"),
    "validation": OSError("the validation data is gone"),
}


class Fails(InEpochs):
    def __init__(self):
        super().__init__()
        self.size = tf.Variable(1, dtype=tf.int64, trainable=False)

    def fail(self, place):
        if place == PLACE and MEMBER == FAILING:
            print("FAILS", time.time(), flush=True)
            raise ERRORS[place]

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == (1, STEP):
            for place in ("hook", "own type", "interrupt", "exit"):
                self.fail(place)
            if PLACE == "step" and MEMBER == FAILING:
                print("FAILS", time.time(), flush=True)
                self.size.assign(1 << 46)

    def on_test_batch_begin(self, batch, logs=None):
        if self.epoch == 1:
            self.fail("validation")

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            self.fail("epoch end")
        if epoch == 2:
            self.fail("last epoch end")


def main():
    fails = Fails()

    def loss(y, prediction):
        # 2**48 bytes, which no process has room for: the allocation itself fails, in the step.
        return tf.reduce_mean((y - prediction) ** 2) + 0.0 * tf.fill([fails.size], 1.0)[0]

    data = tf.data.Dataset.from_tensor_slices(
        (np.ones((24, 4), "float32"), np.ones((24, 1), "float32"))
    ).batch(4)
    with STRATEGY.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", loss)
    error = None
    try:
        model.fit(
            data,
            epochs=3,
            validation_data=data if PLACE == "validation" else None,
            verbose=0,
            callbacks=[PreemptionCallback(DIRECTORY, save_every="epoch"), fails],
        )
    except BaseException as raised:
        error = raised
    record = {
        "time": time.time(),
        "type": type(error).__name__,
        "text": str(error),
        "threads": sorted(t.name for t in threading.enumerate() if t.name.startswith("keras_preempt")),
        "replaced": sorted({"reset_metrics", "evaluate", "_get_metrics_result_or_logs"} & set(vars(model))),
    }
    print("RAISED", json.dumps(record), flush=True)
    if error is not None:
        raise error


main()
