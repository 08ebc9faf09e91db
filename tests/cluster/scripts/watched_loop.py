"""A coordinator as of a TPU with a loop of its own that asks a `PreemptionWatcher` before each step, and nothing else.

Run as: watched_loop.py FOLDER. The addresses of the workers are in FOLDER/workers-0.json. Prints ``STEPS`` after the
first step, and how it ends: ``PREEMPTED <task> <error>``.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from remote_cluster import connect_to_workers

from keras_preempt import PreemptionWatcher

connect_to_workers(Path(sys.argv[1]), 0)
strategy = tf.distribute.OneDeviceStrategy("/job:worker/replica:0/task:1/device:CPU:0")
with strategy.scope():
    state = tf.Variable(0.0)


@tf.function
def update():
    strategy.run(lambda: state.assign_add(1.0))


limit = time.monotonic() + 60
with PreemptionWatcher() as watcher:
    try:
        while time.monotonic() < limit:
            watcher.check()
            update()
            if float(state.numpy()) == 1.0:
                print("STEPS", flush=True)
    except tf.errors.AbortedError as error:
        print("PREEMPTED", watcher.preemption_message, error.message, flush=True)
