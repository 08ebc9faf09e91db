"""A custom loop of any number of workers, which is struck at its first starts under the launcher.

Usage: ``handler_run.py DIRECTORY STEPS``. At its first start by the launcher worker 1 gets SIGTERM in a step, at its
second one worker 0 gets SIGKILL in a later one. Prints ``STEP <n>`` in each step, ``RAN <json>`` when it leaves, and
``VALUE <number>`` at the end of training.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import tensorflow as tf

STRATEGY = tf.distribute.MultiWorkerMirroredStrategy()

from keras_preempt import PreemptionCheckpointHandler  # noqa: E402  the strategy comes first

DIRECTORY, STEPS = sys.argv[1], int(sys.argv[2])
STRIKES = {"0": (1, 4, signal.SIGTERM), "1": (0, 8, signal.SIGKILL)}
MEMBER = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"]
STRIKE = STRIKES.get(os.environ.get("KERAS_PREEMPT_LAUNCHER_INCARNATION", ""))

with STRATEGY.scope():
    step = tf.Variable(0, dtype=tf.int64)
    state = tf.Variable(1.0, dtype=tf.float64)
    handler = PreemptionCheckpointHandler(
        STRATEGY.cluster_resolver, tf.train.Checkpoint(step=step, state=state), DIRECTORY
    )


@tf.function
def update():
    def in_replica():
        context = tf.distribute.get_replica_context()
        state.assign(state * 0.7 + context.all_reduce("SUM", tf.cast(step * 3 + 1 + MEMBER, tf.float64)))

    STRATEGY.run(in_replica)


def one():
    print("STEP", int(step.numpy()), flush=True)
    if STRIKE and STRIKE[:2] == (MEMBER, step.numpy()):
        os.kill(os.getpid(), STRIKE[2])
    time.sleep(0.02)
    update()
    ran.append(int(step.numpy()))
    step.assign_add(1)


ran: list[int] = []
try:
    with handler:
        while step.numpy() < STEPS:
            handler.run(one)
finally:
    print("RAN", json.dumps(ran), flush=True)
print("VALUE", float(state.numpy()).hex(), flush=True)
