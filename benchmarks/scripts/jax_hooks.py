"""One process of a job on JAX that measures in a fit what its hooks cost a step.

Run as: FOLDER REPETITIONS STEPS SEED.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

import jax
import jax_job
import keras
import numpy as np
from jax.experimental import multihost_utils
from turns import Timer, hooks, nothing, numbered_calls, ours_of, running_container, take_turns

from keras_preempt import PreemptionCallback
from keras_preempt.backend.jax import backlog


class Empty(keras.callbacks.Callback):  # type: ignore[misc]
    """Does nothing, in the two hooks of a step."""

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        """Nothing."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Nothing."""


class Measure(keras.callbacks.Callback):  # type: ignore[misc]
    """Measures in the middle of the fit that it belongs to: at the third step, when nothing is done for the first time.

    Args:
        repetitions: How often each contestant takes its turn.
        steps: How many steps a turn has.
        seed: For the order of the turns.
    """

    def __init__(self, repetitions: int, steps: int, seed: int) -> None:
        super().__init__()
        self.results: dict[str, list[float]] = {}
        self.ours: list[str] = []
        self._turns = (repetitions, steps, seed)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Measures."""
        if batch == 2:
            ours = ours_of(running_container())
            self.ours = [type(each).__name__ for each in ours]
            contestants = {
                "none": hooks([]),
                "empty": hooks([Empty()]),
                "ours": hooks(ours),
                "call": numbered_calls(nothing),
                **_of_orbax(),
                "check": numbered_calls(multihost_utils.reached_preemption_sync_point),
                "step": numbered_calls(Stepped().step),
                "windowed": numbered_calls(Stepped(bounded=True).step),
            }
            self.results = take_turns(contestants, *self._turns)


def _of_orbax() -> dict[str, Timer]:
    """Returns what `CheckpointManager.reached_preemption` calls, if Orbax is installed."""
    if importlib.util.find_spec("orbax") is None:
        return {}
    from orbax.checkpoint.utils import reached_preemption

    return {"orbax": numbered_calls(reached_preemption)}


class Stepped:
    """Stands for a model whose steps take no time.

    Args:
        bounded: Whether this package bounds the steps that are queued.
    """

    def __init__(self, *, bounded: bool = False) -> None:
        logs = {"loss": jax.numpy.zeros(()), "mae": jax.numpy.zeros(())}
        self.train_function = lambda state, iterator: (logs, state)
        if bounded:
            backlog.bound(self)

    def step(self, number: int) -> None:
        """Makes one step."""
        self.train_function(None, None)


def main(folder: str, repetitions: int, steps: int, seed: int) -> None:
    jax_job.begin()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.zeros((16, 2), "float32")
    measure = Measure(repetitions, steps, seed)
    callbacks = [PreemptionCallback(folder), measure]
    model.fit(x, x[:, :1], batch_size=4, epochs=1, verbose=0, callbacks=callbacks)
    print("MEASURED " + json.dumps({"ours": measure.ours, "results": measure.results}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
