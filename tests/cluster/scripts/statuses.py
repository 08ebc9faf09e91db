"""A fit that is preempted, or loses a worker, in a program whose output or whose own code fails at the end.

Run as: statuses.py DIRECTORY HOW WAY...; HOW is preempted, lost, replaced by a newer start of the job, or loop for a
custom loop that is preempted, and each WAY one of those below. It prints into a
buffer that is not flushed before the end, as programs do whose output is a file.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from keras_preempt import PreemptionCallback, PreemptionCheckpointHandler
from keras_preempt.backend.tensorflow.errors import WorkerLost
from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.storage.local import LocalStore
from tests.fits import Doing

DIRECTORY, HOW, *WAYS = sys.argv[1:]


class Raises(logging.Handler):
    def emit(self, record):
        raise ValueError("the log cannot be shipped")


def fails(*rest):
    raise OSError("the report cannot be written")


def prints_late():
    print("the last line", "x" * 100)


class Strike(Doing):
    def on_train_batch_begin(self, batch, logs=None):
        if sys.stdout is not None:
            sys.stdout.write("a line\n")
        if batch == 3 and HOW == "preempted":
            os.kill(os.getpid(), signal.SIGTERM)
        if batch == 3 and HOW == "lost":
            raise WorkerLost(None, None, "worker 1 is gone")
        if batch == 3 and HOW == "replaced":
            incarnations.claim(LocalStore(DIRECTORY), {"members": 1})


if "handler" in WAYS:
    logging.getLogger().addHandler(Raises())
if "filter" in WAYS:
    logging.getLogger("keras_preempt").addFilter(fails)
if "hook" in WAYS:
    sys.excepthook = fails
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = np.ones((8, 2), "float32")
if "atexit" in WAYS:
    atexit.register(fails)
    atexit.register(sys.exit, 3)
    atexit.register(prints_late)
if "again" in WAYS:
    atexit.register(os.kill, os.getpid(), signal.SIGTERM)
if HOW == "loop":
    step = tf.Variable(0, dtype=tf.int64)
    handler = PreemptionCheckpointHandler(None, tf.train.Checkpoint(step=step), DIRECTORY)
    for number in range(8):
        if sys.stdout is not None:
            sys.stdout.write("a line\n")
        handler.run(os.kill, os.getpid(), signal.SIGTERM if number == 3 else 0)
        step.assign_add(1)
model.fit(
    x, x[:, :1], batch_size=1, shuffle=False, verbose=0, callbacks=[Strike(), PreemptionCallback(DIRECTORY)]
)
