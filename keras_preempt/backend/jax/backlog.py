"""Limits how far the host runs ahead of the device.

JAX returns from a step before it is computed, so Keras can queue seconds of steps. A notice would have to wait for all
of them, and a grace period may be shorter. Waiting for an earlier step costs nothing while the device has others to
compute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import jax

WINDOW = 2
"""Calls of the training function that may be queued behind the one that the device computes."""


def bound(model: Any) -> Callable[[], None]:
    """Limits the steps that a running fit of a model queues; returns a function that ends that."""
    original = model.train_function
    queued: deque[Any] = deque()

    def train_function(state: Any, iterator: Any) -> Any:
        logs, state = original(state, iterator)
        queued.append(logs)
        if len(queued) > WINDOW:
            _wait_for(queued.popleft())
        return logs, state

    model.train_function = train_function

    def end() -> None:
        queued.clear()
        if model.train_function is train_function:
            model.train_function = original

    return end


def _wait_for(logs: Any) -> None:
    # All results of a step are ready at the same time: asking one takes a fraction of the time.
    for value in logs.values() if type(logs) is dict else ():
        if (wait := getattr(value, "block_until_ready", None)) is not None:
            wait()
            return
    jax.block_until_ready(logs)
