"""The job that both contestants run: one model, one step.

The step sleeps before it computes, so that a notice usually finds one in flight, and so that its length does
not depend on how many workers share the machine's cores. The sleep stands inside the train step, where both
a fit and a custom loop run it.
"""

from __future__ import annotations

import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

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
