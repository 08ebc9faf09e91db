"""A fit that ends in one of several ways, and says what it has left behind in its process.

Run as: exits.py DIRECTORY finish|preempted|gce|error|interrupt. With gce it says STRIKE and waits for a notice.
Prints ``LEFT <json>`` after the fit, then ends as the fit did.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from keras_preempt import PreemptionCallback, TerminationConfig
from tests.cluster.small_fit import await_
from tests.fits import Doing

DIRECTORY, WAY = sys.argv[1:]
STEPS, STRIKE = 8, 5

READER, WRITER = socket.socketpair()
WRITER.setblocking(False)


def mine(number, frame):
    raise AssertionError(f"signal {number} came to the handler of the program")


def loss(y, prediction):
    tf.debugging.assert_all_finite(y, "this step fails")
    return tf.reduce_mean((y - prediction) ** 2)


class Strike(Doing):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == STRIKE and WAY == "preempted":
            os.kill(os.getpid(), signal.SIGUSR1)
        if batch == STRIKE and WAY == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        if batch == STRIKE and WAY == "gce":
            print("STRIKE", flush=True)
            await_(heard_of_a_notice, 60, "no notice came")


def heard_of_a_notice():
    return any('"event":"notice"' in path.read_text() for path in Path(DIRECTORY).glob("events/*.jsonl"))


def fit():
    keras.utils.set_random_seed(1)
    x = np.arange(STEPS * 4 * 2, dtype="float32").reshape(-1, 2)
    y = x[:, :1].copy()
    if WAY == "error":
        y[STRIKE * 4] = np.inf
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", loss)
    config = TerminationConfig(
        signals=("SIGTERM", "SIGUSR1"),
        grace_period=0 if WAY == "gce" else None,  # Not for the half minute that a notice of GCE leaves.
    )
    callbacks = [Strike(), PreemptionCallback(DIRECTORY, termination=config, save_every=2)]
    model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)


def has_children():
    try:
        return (
            os.waitpid(-1, os.WNOHANG) is not None
        )  # Of a living child it says (0, 0), of a zombie its number.
    except ChildProcessError:
        return False


def main():
    watched = (signal.SIGTERM, signal.SIGUSR1)
    for number in watched:
        signal.signal(number, mine)
    interrupt = signal.getsignal(signal.SIGINT)
    signal.set_wakeup_fd(WRITER.fileno(), warn_on_full_buffer=False)
    tf.zeros(1)  # Starts TensorFlow, which opens files of its own.
    threads = set(threading.enumerate())
    files = len(os.listdir("/proc/self/fd"))
    left = None
    try:
        fit()
    except BaseException as error:
        # Without its frames, which hold the fit: who catches an error and goes on lets go of them as well.
        left = error.with_traceback(None)
        left.__context__ = None
    said = {
        "error": type(left).__name__,
        "handlers": [signal.getsignal(number) is mine for number in watched],
        "interrupt": signal.getsignal(signal.SIGINT) is interrupt,
        "wakeup": signal.set_wakeup_fd(-1) == WRITER.fileno(),
        "threads": sorted(thread.name for thread in set(threading.enumerate()) - threads),
        "children": has_children(),
        "files": len(os.listdir("/proc/self/fd")) - files,
    }
    print("LEFT " + json.dumps(said), flush=True)
    if left is not None:
        raise left


main()
