"""The job that both contestants run: one model, one step, one way to record when its steps began.

The step sleeps before it computes, so that a notice usually finds one in flight, and so that its length does
not depend on how many workers share the machine's cores. The sleep stands inside the train step, where both
a fit and a custom loop run it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

STEPS = 10_000
"""Far more than a run gets to: it ends by preemption or not at all."""

_FEATURES, _BATCH = 64, 16


class SlowStep(keras.Sequential):  # type: ignore[misc]
    """A model whose train step takes that many seconds longer than its arithmetic."""

    def __init__(self, layers: list[Any], seconds: float) -> None:
        super().__init__(layers)
        self._seconds = seconds

    def train_step(self, data: Any) -> Any:
        """Sleeps, then does what Keras does."""
        (slept,) = tf.numpy_function(self._sleep, [], [tf.float32], stateful=True)
        with tf.control_dependencies([slept]):
            x, y = data
            return super().train_step((tf.identity(x), y))

    def _sleep(self) -> Any:
        time.sleep(self._seconds)
        return np.float32(0)


def model(seconds: float, width: int) -> Any:
    """Compiles the model within the strategy's scope; 2 layers of width x width weights, under Adam."""
    hidden = [keras.layers.Dense(width, activation="relu") for _ in range(3)]
    made = SlowStep([keras.Input((_FEATURES,)), *hidden, keras.layers.Dense(1)], seconds)
    made.compile("adam", "mse", jit_compile=False)
    return made


def data() -> Any:
    """An endless input."""
    x = np.random.default_rng(0).normal(size=(_BATCH * 8, _FEATURES)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).repeat().batch(_BATCH, drop_remainder=True)


class Journal:
    """What this worker did and when, in seconds since 1970; one JSON file, written when the job ends.

    Args:
        folder: Where to write it.
    """

    def __init__(self, folder: str) -> None:
        self._worker = int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
        self._path = Path(folder) / f"journal-{self._worker}.json"
        self._steps: list[float] = []
        self._times: dict[str, float] = {}

    def step(self) -> None:
        """Prints that a step begins, for the program that chooses when to send the signal."""
        self._steps.append(time.time())
        print(f"STEP {len(self._steps)}", flush=True)

    def note(self, what: str) -> None:
        """Records that something happens now."""
        self._times[what] = time.time()

    def write(self) -> None:
        """Writes the file."""
        self._path.write_text(json.dumps({"steps": self._steps, **self._times}))
