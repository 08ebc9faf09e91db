"""Trains on JAX beside what works in other threads when training is preempted on the last boundary of an epoch.

Run as: background_saves.py DIRECTORY WHAT. WHAT is "orbax" (Keras' OrbaxCheckpoint), "pool" (a callback that saves in
a pool and waits for the other processes there), or what keeps process 1 from ending: "thread", "submitted", "atexit",
"finalized".
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils

from keras_preempt import PreemptionCallback
from tests.fits import Doing, Stateless

DIRECTORY, WHAT = sys.argv[1:]
LAST = 5
if os.environ.get("KERAS_DISTRIBUTION_NUM_PROCESSES"):
    keras.distribution.initialize()
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
ME = jax.process_index()


class SavesInPool(Stateless, keras.callbacks.Callback):
    """Saves as Orbax does: one thread has others write, and waits for the other processes."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.writers = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self.saves: list[Future[None]] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.saves.append(self.pool.submit(self.save, epoch))

    def save(self, epoch: int) -> None:
        time.sleep(1 + 3 * ME)
        self.writers.submit(lambda: print("WRITTEN", epoch, flush=True)).result()
        multihost_utils.sync_global_devices(f"saved {epoch}")
        print("SAVED", epoch, flush=True)

    def on_train_end(self, logs: Any = None) -> None:
        for save in self.saves:
            save.result()


class Slow:
    def __del__(self, wait: Any = time.sleep) -> None:
        wait(600)


def hold_up() -> None:
    """Keeps this process from ending."""
    if WHAT == "thread":
        threading.Thread(target=time.sleep, args=(600,)).start()
    elif WHAT == "submitted":
        pool = ThreadPoolExecutor(1)
        pool.submit(time.sleep, 600)
    elif WHAT == "atexit":
        atexit.register(time.sleep, 600)
    elif WHAT == "finalized":
        sys.modules["slow"] = Slow()  # type: ignore[assignment]


def strike(batch: int, logs: Any = None) -> None:
    if ME == 1 and batch == LAST:
        os.kill(os.getpid(), signal.SIGTERM)


keras.utils.set_random_seed(3)
x = np.random.rand(72, 8).astype("float32")
model = keras.Sequential([keras.Input((8,)), *map(keras.layers.Dense, (2500, 2500, 1))])
model.compile("adam", "mse")
callbacks = [Doing(on_train_batch_begin=strike), PreemptionCallback(DIRECTORY)]
if WHAT == "orbax":
    callbacks.append(keras.callbacks.OrbaxCheckpoint(DIRECTORY + "-orbax", monitor="loss"))
elif WHAT == "pool":
    callbacks.append(SavesInPool())
elif ME == 1:
    hold_up()
model.fit(x, x.sum(1), batch_size=12, epochs=3, verbose=0, callbacks=callbacks)
