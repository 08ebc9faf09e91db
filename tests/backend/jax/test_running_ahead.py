"""The host prepares the next step while the device computes; a checkpoint holds what callbacks made of each step."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np

from keras_preempt import PreemptionCallback

STEPS = 6


class BusyLoss(keras.Sequential):
    def compute_loss(self, x: Any = None, *arguments: Any, **named: Any) -> Any:
        begin = jax.lax.stop_gradient(x[0])
        busy = jax.lax.fori_loop(0, 1_000_000, lambda _, value: jax.numpy.sin(value), begin).sum()
        return super().compute_loss(x, *arguments, **named) + 0.0 * busy


class Ahead(keras.callbacks.Callback):
    """Its hook at the end of a step is one that another thread may call."""

    async_safe = True

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[int] = []
        self.told: list[str] = []

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        if batch > 2:  # The first steps are compiled, and looked at.
            state = self._model._jax_state["trainable_variables"]
            self.told.append("computed" if state[0].is_ready() else "queued")

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        time.sleep(0.5)  # A hook that takes longer than the steps.
        self.ended.append(batch)

    def get_state(self) -> dict[str, Any]:
        self.told.append(f"ended {sorted(self.ended)}")
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


def test_fit_does_not_wait_for_a_step_before_it_begins_the_next_one(tmp_path: Path) -> None:
    # On a CPU, JAX computes at once what it takes for a trifle, without counting how often a loop runs.
    model = BusyLoss([keras.Input((32,)), keras.layers.Dense(256), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.zeros((STEPS, 32), "float32")
    ahead = Ahead()
    ours = PreemptionCallback(str(tmp_path / "run"), save_every=STEPS - 1)
    model.fit(x, x[:, :1], batch_size=1, verbose=0, callbacks=[ours, ahead])
    # An older one waits on a CPU for a step that may reuse the memory of its weights, also in plain Keras.
    if jax.__version_info__ >= (0, 9):
        assert "queued" in ahead.told
    # The save in the middle comes when the hook of the last step before it has run.
    assert "ended [0, 1, 2, 3, 4]" in ahead.told
