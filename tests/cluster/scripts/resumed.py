"""Tells what `PreemptionCallback.resumed` is at each place where a script can look.

Run as: resumed.py TOLD DIRECTORY, in each worker. TOLD.<worker> gets a line for each place. With the environment
variable KILL_AFTER set to a step, the last worker kills itself when the checkpoint of that step is committed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_preempt import PreemptionCallback
from tests.cluster.small_fit import await_
from tests.fits import Doing

STEPS = 18
several = "TF_CONFIG" in os.environ
strategy = tf.distribute.MultiWorkerMirroredStrategy() if several else tf.distribute.get_strategy()
worker = strategy.cluster_resolver.task_id if several else 0
workers = strategy.num_replicas_in_sync
callback = PreemptionCallback(sys.argv[2], save_every=4)


def tell(when: str) -> None:
    resumed = None if callback.resumed is None else dataclasses.astuple(callback.resumed)
    with open(f"{sys.argv[1]}.{worker}", "a") as told:
        print(json.dumps([when, resumed]), file=told)


class Looks(Doing):
    def __init__(self, when: str) -> None:
        super().__init__()
        self._when = when

    def on_train_begin(self, logs: Any = None) -> None:
        tell(self._when)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        after = int(os.environ.get("KILL_AFTER", STEPS))
        if worker == workers - 1 and self.model.optimizer.iterations.numpy() == after + 1:
            committed = f"step-{after:08d}/*/MANIFEST.json"
            await_(lambda: list(Path(sys.argv[2]).glob(committed)), 60, "the save was not committed")
            os.kill(os.getpid(), signal.SIGKILL)


keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
tell("made")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8)
model.fit(data, epochs=3, shuffle=False, verbose=0, callbacks=[Looks("before"), callback, Looks("after")])
tell("over")
