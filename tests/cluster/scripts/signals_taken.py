"""A fit during which other code of the process does something with signals; the test sends the signal from outside.

Run as: signals_taken.py DIRECTORY WAY. Says READY when it is done, ``RAN <step>`` after each step, and ends as the fit
does. MINE and LOOP say that the other code's own handler was called.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time

import keras
import numpy as np
import tensorflow as tf

from keras_preempt import PreemptionCallback, PreemptionCheckpointHandler
from tests.fits import Doing

DIRECTORY, WAY = sys.argv[1:]
LOOP_WAY = "no descriptor, in a custom loop"
STEPS = 20_000  # In one epoch, which nobody waits for to end.
LOOP = asyncio.new_event_loop()


def say(*what):
    """One write a line: a handler's line must not be torn by one that another thread logs meanwhile."""
    os.write(sys.stdout.fileno(), (" ".join(map(str, what)) + "\n").encode())


def other_signal():
    LOOP.add_signal_handler(signal.SIGUSR2, say, "LOOP")


def other_signal_and_closed():
    other_signal()
    LOOP.close()


def same_signal():
    LOOP.add_signal_handler(signal.SIGTERM, say, "LOOP")


def loop_in_a_thread():
    threading.Thread(target=LOOP.run_forever, daemon=True).start()
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), LOOP).result(60)


WAYS = {
    "nothing": lambda: None,
    "no descriptor": lambda: signal.set_wakeup_fd(-1),
    "asyncio, another signal": other_signal,
    "asyncio, another signal, closed": other_signal_and_closed,
    "asyncio, the same signal": same_signal,
    "asyncio, in a thread": loop_in_a_thread,
    "another handler": lambda: signal.signal(signal.SIGTERM, lambda number, frame: say("MINE")),
    "the default": lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL),
}


class Other(Doing):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 3:
            WAYS[WAY]()
            say("READY")
        time.sleep(0.2)  # A step during which a busy machine, too, gets to answer a signal.

    def on_train_batch_end(self, batch, logs=None):
        say("RAN", batch)


def loop():
    """A custom loop, to which other code does the same."""
    step = tf.Variable(0, dtype=tf.int64)
    handler = PreemptionCheckpointHandler(None, tf.train.Checkpoint(step=step), DIRECTORY)

    def one():
        number = int(step.numpy())
        if number == 3:
            signal.set_wakeup_fd(-1)
            say("READY")
        time.sleep(0.2)
        step.assign_add(1)
        say("RAN", number)

    while int(step.numpy()) < STEPS:
        handler.run(one)


def main():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.ones((STEPS, 2), "float32")
    try:
        model.fit(
            x,
            x[:, :1],
            batch_size=1,
            shuffle=False,
            verbose=0,
            callbacks=[Other(), PreemptionCallback(DIRECTORY)],
        )
    finally:
        if WAY == "asyncio, the same signal":
            LOOP.run_until_complete(asyncio.sleep(0.5))
        mine = signal.getsignal(signal.SIGTERM)
        say("LEFT", getattr(mine, "__qualname__", mine), signal.set_wakeup_fd(-1))


loop() if WAY == LOOP_WAY else main()
