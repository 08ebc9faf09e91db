"""A short training that records its own steps, and when its process began and ended.

Run as: train.py RECORD DIRECTORY [SAVE_EVERY], in each worker. A line of RECORD.<worker> is written for each step run:
the number of the start and of the step, and the time. With the environment variable KILL set to a step, the first start
kills itself before that step, without a notice.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_preempt import PreemptionCallback
from tests.fits import untuned

STEPS, EPOCHS = 8, 4


class Record(keras.callbacks.Callback):  # type: ignore[misc]
    """Writes a line for each step as soon as it is done: what a killed process has written stays."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - for as long as the process lives
        self._start = int(os.environ.get("KERAS_PREEMPT_LAUNCHER_INCARNATION", 0)) + 1
        self._kill = int(os.environ.get("KILL", -1)) if self._start == 1 else -1

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._step() == self._kill:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._file.write(f"{self._start} {self._step()} {time.time()}\n".encode())

    def _step(self) -> int:
        return int(self.model.optimizer.iterations.numpy())

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


def main(record: str, directory: str, save_every: str | None = None) -> None:
    keras.utils.set_random_seed(1)
    several = "TF_CONFIG" in os.environ
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if several else tf.distribute.get_strategy()
    x = np.random.default_rng(0).normal(size=(STEPS * 8, 4)).astype("float32")
    data = untuned(tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(len(x), seed=1).batch(8))
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    worker = strategy.cluster_resolver.task_id if several else 0
    callback = PreemptionCallback(directory, save_every=int(save_every) if save_every else None)
    model.fit(
        data,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[callback, Record(f"{record}.{worker}")],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
