"""A callback that prints every step, and sends its own process a signal at a chosen moment."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections import Counter
from typing import Any

import keras
import numpy as np

WORKER = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)


class Stateless(keras.callbacks.Callback):
    """A callback that says that it has no state."""

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


class Recorder(Stateless):
    """Prints ``RAN epoch batch logs drawn`` after every step.

    Args:
        strike: ``place number [worker [signal]]``: where the signal comes, counted in this process; None for
            nowhere. Worker 0 and SIGTERM unless they are named.
    """

    def __init__(self, strike: str | None) -> None:
        super().__init__()
        place, number, *rest = (strike or "never 0").split()
        worker, name = [*rest, *("0", "SIGTERM")[len(rest) :]]
        self._signal = signal.Signals[name]
        self._strike = (place, int(number)) if int(worker) == WORKER else None
        self._begun: Counter[str] = Counter()
        self._epoch = 0

    def _begin(self, place: str) -> None:
        if (place, self._begun[place]) == self._strike:
            print(f"STRUCK {place} {self._begun[place]}", flush=True)
            os.kill(os.getpid(), self._signal)
        self._begun[place] += 1

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._begin("epoch")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._begin("batch")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        drawn = [random.random(), float(np.random.rand())]
        if keras.backend.backend() == "torch":
            import torch  # Here, since what runs on another backend may do without.

            drawn.append(float(torch.rand(())))
        # In one piece: a log line of another thread must not come between a text and its end of line.
        sys.stdout.write(f"RAN {self._epoch} {batch} {json.dumps(logs, default=float)} {drawn}\n")
        sys.stdout.flush()

    def on_test_begin(self, logs: Any = None) -> None:
        self._begin("test")

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._begin("test_batch")
