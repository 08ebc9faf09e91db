"""The problem that the peers of `what_is_lost.py` train: its data, and the record of its steps. NumPy alone.

It is that of `interrupted_job.py`: two epochs of 40 steps with 16 of 640 samples each, shuffled; the first feature is
the number of the sample.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

EPOCHS, STEPS, BATCH = 2, 40, 16
SAMPLES = STEPS * BATCH
EXIT_RESTART = 75
"""The status with which a script leaves after a notice, where its peer has none of its own."""


def data() -> tuple[Any, Any]:
    """Returns the samples and their targets."""
    x = np.random.default_rng(0).random((SAMPLES, 4), dtype=np.float32)
    x[:, 0] = np.arange(SAMPLES)
    return x, x[:, 1:2].copy()


class Steps:
    """Notes each step as it begins, in the next free file of a folder; waits in one of them until the signal was sent.

    Args:
        folder: Where to note them.
        wait_at: How many updates there are before that step; None: it waits in none.
    """

    seconds = 0.2
    """How long the steps after the signal last: a peer that trains on for some seconds has to have steps to train."""

    def __init__(self, folder: str, wait_at: int | None) -> None:
        self._path = Path(folder, f"steps-{len(list(Path(folder).glob('steps-*')))}.jsonl")
        self._path.touch()
        self._wait_at = wait_at
        self._signalled = False

    def note(self, updates: int, samples: Any) -> None:
        """Notes a step after so many updates, with the numbers of its samples."""
        step = {"updates": int(updates), "samples": [int(each) for each in samples], "at": time.time()}
        with self._path.open("a") as stream:
            stream.write(json.dumps(step) + "\n")
        if self._signalled:
            time.sleep(self.seconds)
        elif updates == self._wait_at:
            self._signalled = True
            self.wait()

    def wait(self) -> None:
        """Waits until the signal was sent."""
        print("READY", flush=True)
        sys.stdin.readline()


def leave(folder: str, values: Mapping[str, Any]) -> None:
    """Writes the end of the training: its arrays by name."""
    np.savez(Path(folder, "end.npz"), **{name: np.asarray(value) for name, value in values.items()})


def told() -> tuple[str, str, int | None]:
    """Returns what the command line says: FOLDER WAY [UPDATES]; `UPDATES` is where to wait for the signal."""
    folder, way, *updates = sys.argv[1:]
    return folder, way, int(updates[0]) if updates else None


def run(ways: Mapping[str, Callable[[str, Steps], Mapping[str, Any]]]) -> None:
    """Runs a way as told by the command line."""
    folder, way, wait_at = told()
    leave(folder, ways[way](folder, Steps(folder, wait_at)))
