"""A coordinator as of a TPU whose custom loop computes on a remote worker, under our handler or with a watcher.

Run as: handler_remote.py FOLDER handled|watched. The addresses of the n-th set of workers are in FOLDER/workers-n.json.
In step 5 on the first set the handled loop prints ``HOLDS`` and waits for the notice; at the end, ``END <value> <runs>
<steps of each set>``. The watched one asks a `PreemptionWatcher` before each step, and nothing else. It prints
``STEPS`` after the first one, and how it ends: ``PREEMPTED <task> <error>``.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import tensorflow as tf
from remote_cluster import Notice, connect_to_workers

from keras_preempt import Preempted, PreemptionCheckpointHandler, PreemptionWatcher, TerminationConfig

FOLDER, WATCHED, STEPS, HOLD = Path(sys.argv[1]), sys.argv[2] == "watched", 12, 5
ran: list[list[int]] = []
notice = Notice()


def connect():
    resolver = connect_to_workers(FOLDER, len(ran))
    return resolver, tf.distribute.OneDeviceStrategy("/job:worker/replica:0/task:1/device:CPU:0")


def train(resolver, strategy):
    with strategy.scope():
        state = tf.Variable(1.0, dtype=tf.float64)
        step = tf.Variable(0, dtype=tf.int64)
        checkpoint = tf.train.Checkpoint(state=state, step=step)
        handler = PreemptionCheckpointHandler(
            resolver, checkpoint, FOLDER / "run", TerminationConfig(exit_fn=lambda: None)
        )

    @tf.function
    def update():
        strategy.run(lambda: state.assign(state * 0.7 + tf.cast(step, tf.float64)))

    ran.append([])
    with handler, handler.watch_preemption_scope():
        while step.numpy() < STEPS:
            if len(ran) == 1 and step.numpy() == HOLD:
                notice.wait()
            handler.run(update)
            ran[-1].append(int(step.numpy()))
            step.assign_add(1)
    print("END", float(state.numpy()).hex(), handler.total_run_calls, json.dumps(ran), flush=True)


def watch(strategy):
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


while True:
    resolver, strategy = connect()
    if WATCHED:
        watch(strategy)
        break
    try:
        train(resolver, strategy)
        break
    except Preempted as preempted:
        print("PREEMPTED", preempted, flush=True)
    with PreemptionWatcher() as watcher:
        watcher.block_until_worker_exit(timeout=60)
print("THREADS", [t.name for t in threading.enumerate() if t.name.startswith("keras_preempt")], flush=True)
