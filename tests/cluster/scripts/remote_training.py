"""A coordinator as of a TPU: trains on remote workers, in the loop of examples/tpu_loop.py or until it is preempted.

Run as: remote_training.py FOLDER loop|exit [undisturbed], in the loop of the example or not.
The addresses of the n-th set of workers are in FOLDER/workers-n.json. With ``undisturbed`` it trains on the first set
before, without any callback of the package.
Prints ``RAN <epoch> <batch> <logs>`` after each execution, ``AT <epoch> <batch>`` before; at the end, ``END <json>``.
Where FOLDER/hold-<epoch>-<batch> is, it waits for a notice, and fails if that file says "error". If it says "lost", it
waits for FOLDER/gone instead.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import random
import sys
import threading
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from remote_cluster import Notice, connect_to_workers

from keras_preempt import PreemptionCallback, TerminationConfig
from tests.cluster.small_fit import InEpochs, await_
from tests.fits import untuned

FOLDER, MODE = Path(sys.argv[1]), sys.argv[2]
EXAMPLE = Path(__file__).parents[3] / "examples" / "tpu_loop.py"
EPOCHS, STEPS, BATCH, EXECUTION = 3, 20, 8, 5
connected: list[int] = []
notice = Notice()


def connect(tpu):
    """Stands in for a TPUStrategy, which needs TPUs: one device of one of the remote workers."""
    number = len(connected)
    print("CONNECTS", number, flush=True)
    connected.append(1)
    connect_to_workers(FOLDER, number)
    return compute_on_worker_1()


def compute_on_worker_1():
    return tf.distribute.OneDeviceStrategy("/job:worker/replica:0/task:1/device:CPU:0")


class Marks(InEpochs):
    def __init__(self, say=print):
        super().__init__()
        self.say = say

    def on_train_batch_begin(self, batch, logs=None):
        if self.say is not print:
            return
        print("AT", self.epoch, batch, flush=True)
        path = FOLDER / f"hold-{self.epoch}-{batch}"
        if path.exists():
            path = path.rename(path.with_name("held"))
            self.hold(path)

    def hold(self, path):
        """Until the notice is there, so that this execution is the last."""
        if path.read_text() == "lost":
            return self.await_loss()
        notice.wait()
        if path.read_text() == "error":
            raise ValueError("an error that is no preemption")

    def await_loss(self):
        print("HOLDS", flush=True)
        await_((FOLDER / "gone").exists, 60, "the workers did not go")

    def on_train_batch_end(self, batch, logs=None):
        drawn = random.random(), np.random.rand()
        self.say("RAN", self.epoch, batch, json.dumps(logs, sort_keys=True), *drawn, flush=True)


def make_data():
    x = np.random.default_rng(1).normal(size=(STEPS * BATCH, 6)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).shuffle(64, seed=3)
    return untuned(data.batch(BATCH, drop_remainder=True).prefetch(2))


def train(strategy, directory, callbacks=None):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [keras.layers.Dense(8, "relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)]
        model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"], steps_per_execution=EXECUTION)
    termination = TerminationConfig(exit_fn=None if MODE == "exit" else lambda: None)
    callbacks = callbacks or [Marks(), PreemptionCallback(directory, termination=termination)]
    history = model.fit(make_data(), epochs=EPOCHS, verbose=0, callbacks=callbacks)
    digest = hashlib.sha256()
    for variable in (*model.variables, *model.optimizer.variables):
        digest.update(np.asarray(variable).tobytes())
    end = {
        "history": history.history,
        "state": digest.hexdigest(),
        "random": [random.random(), np.random.rand(), float(keras.random.uniform(()))],
    }
    print("END", json.dumps(end), flush=True)


spec = importlib.util.spec_from_file_location("tpu_loop", EXAMPLE)
loop = importlib.util.module_from_spec(spec)
spec.loader.exec_module(loop)
if "undisturbed" in sys.argv:
    train(connect(""), "", callbacks=[Marks(say=lambda *text, **how: None)])
    keras.utils.clear_session()
    connected.clear()
loop.connect, loop.train = connect, train
if MODE == "loop":
    loop.main(str(FOLDER / "run"), "")
else:
    train(connect(""), str(FOLDER / "run"))
print("THREADS", [t.name for t in threading.enumerate() if t.name.startswith("keras_preempt")], flush=True)
