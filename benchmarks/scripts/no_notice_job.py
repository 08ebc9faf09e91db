"""The job of `no_notice.py`: one fit on one device, that notes each step with the time and the processor time so far.

Run as: FOLDER WAY EVERY STEPS UNITS. The ways are "plain", "memory", "save_every" and "backup"; EVERY is how often the
last two save, in steps.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_preempt import PreemptionCallback

FOLDER, WAY = Path(sys.argv[1]), sys.argv[2]
EVERY, STEPS, UNITS = map(int, sys.argv[3:])
RUN = FOLDER / "run"
BATCH, IN_EPOCH = 64, 200

opened: set[str] = set()


def note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    """Notes which files of the run are opened to be read."""
    if event != "open":
        return
    name, _, flags = arguments
    reads = isinstance(flags, int) and not flags & (os.O_WRONLY | os.O_RDWR)
    if reads and str(name).startswith(str(RUN)):
        opened.add(str(name))


class Notes(keras.callbacks.Callback):  # type: ignore[misc]
    """Writes a line after each step."""

    keeps_state = False  # Else what the first start has read would be restored in the second.

    def __init__(self) -> None:
        super().__init__()
        self._file = (FOLDER / f"steps-{len(list(FOLDER.glob('steps-*')))}.jsonl").open("w", buffering=1)
        self._read: int | None = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._read is None:
            tensors = [name for name in opened if name.endswith((".safetensors", ".h5"))]
            self._read = sum(os.path.getsize(name) for name in tensors if os.path.exists(name))
        line = {
            "step": int(self.model.optimizer.iterations.numpy()),
            "at": time.time(),
            "cpu": time.process_time(),
            "read": self._read,
        }
        self._file.write(json.dumps(line) + "\n")


def main() -> None:
    keras.utils.set_random_seed(1)
    size = BATCH * IN_EPOCH
    rng = np.random.default_rng(1)
    x = rng.random((size, 64), dtype="float32")
    y = x.sum(axis=1, keepdims=True)
    layers = [keras.layers.Dense(UNITS, activation="relu"), keras.layers.Dense(UNITS, activation="relu")]
    model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    ours: list[keras.callbacks.Callback] = []
    if WAY == "memory":
        ours = [PreemptionCallback(RUN, memory_every="auto", memory_dir=FOLDER / "memory")]
    elif WAY == "save_every":
        ours = [PreemptionCallback(RUN, save_every=EVERY)]
    elif WAY == "backup":
        ours = [keras.callbacks.BackupAndRestore(str(RUN), save_freq=EVERY)]
    sys.addaudithook(note_opened)
    # BackupAndRestore reads what there is, by h5py: Python is not told.
    opened.update(map(str, RUN.rglob("*.h5")))
    epochs = STEPS // IN_EPOCH
    model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0, callbacks=[*ours, Notes()])


if __name__ == "__main__":
    main()
