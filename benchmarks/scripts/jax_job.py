"""The job on JAX that both contestants run: one model, one jitted step, on the devices of all processes.

The step sleeps while it computes, so that a notice usually finds one in flight, and so that its length does not depend
on how many processes share the machine's cores. The sleep stands inside the loss, which a fit and a loop jit alike.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import keras
import numpy as np
from jax.experimental import io_callback

_FEATURES, _BATCH = 64, 16


class SlowLoss(keras.Sequential):  # type: ignore[misc]
    """A model whose loss takes that many seconds longer than its arithmetic."""

    def __init__(self, layers: list[Any], seconds: float) -> None:
        super().__init__(layers)
        self._seconds = seconds

    def compute_loss(self, *arguments: Any, **named: Any) -> Any:
        """Sleeps, and does what Keras does."""
        slept = io_callback(self._sleep, jax.ShapeDtypeStruct((), np.float32))
        return super().compute_loss(*arguments, **named) + slept

    def _sleep(self) -> Any:
        time.sleep(self._seconds)
        return np.float32(0)


def begin() -> None:
    """Connects the processes; all that is made from now on is on the devices of all."""
    keras.distribution.initialize()
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))


def model(seconds: float, width: int) -> Any:
    """Compiles the model; 2 layers of width x width weights, under Adam."""
    hidden = [keras.layers.Dense(width, activation="relu") for _ in range(3)]
    made = SlowLoss([keras.Input((_FEATURES,)), *hidden, keras.layers.Dense(1)], seconds)
    made.compile("adam", "mse")
    return made


def data() -> tuple[Any, Any, int]:
    """Returns this process's samples, their targets, and the size of its batches."""
    batch = _BATCH // jax.process_count()
    x = np.random.default_rng(jax.process_index()).normal(size=(batch * 8, _FEATURES)).astype("float32")
    return x, x[:, :1], batch
