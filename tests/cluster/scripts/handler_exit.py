"""A custom loop whose program ends in one of several ways, without a word to its handler.

Usage: ``handler_exit.py DIRECTORY WAY SECONDS``. A signal comes SECONDS after the handler was made where WAY is
``SIGTERM`` or ``SIGINT``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

import tensorflow as tf

DIRECTORY, WAY, SECONDS = sys.argv[1], sys.argv[2], float(sys.argv[3])
CLUSTERED = "TF_CONFIG" in os.environ
MEMBER = json.loads(os.environ["TF_CONFIG"])["task"]["index"] if CLUSTERED else 0
STRATEGY = tf.distribute.MultiWorkerMirroredStrategy() if CLUSTERED else tf.distribute.get_strategy()

from keras_preempt import PreemptionCheckpointHandler  # noqa: E402

STEPS = 12

with STRATEGY.scope():
    step = tf.Variable(0, dtype=tf.int64)
    handler = PreemptionCheckpointHandler(None, tf.train.Checkpoint(step=step), DIRECTORY)


@tf.function
def update():
    def in_replica():
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1.0))

    return STRATEGY.run(in_replica)


def one():
    number, strikes = int(step.numpy()), MEMBER == 0
    if WAY == "error" and number == 5 and strikes:
        os.kill(os.getpid(), signal.SIGTERM)
        raise ValueError("this step fails")
    if WAY == "notice at the end" and number == STEPS - 1 and strikes:
        os.kill(os.getpid(), signal.SIGTERM)
    update()
    time.sleep(0.05)


if WAY.startswith("SIG") and MEMBER == 0:
    number = signal.Signals[WAY]
    timer = threading.Timer(SECONDS, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()

while step.numpy() < STEPS:
    if WAY == "exit" and step.numpy() == 5 and MEMBER == 0:
        sys.exit(3)
    if WAY == "deletion" and step.numpy() == 5:
        del handler
        break
    if f"killed {MEMBER}" == WAY and step.numpy() == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    if WAY == "error between steps" and step.numpy() == 5 and MEMBER == 0:
        raise ValueError("not in a step")
    handler.run(one)
    step.assign_add(1)
print("END", int(step.numpy()), flush=True)
