"""Log lines begin on a line of their own beside Keras' progress bar, on a terminal and in a pipe; in no other place
is a line left empty for them."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.cluster.harness import QUIET_CPU, python

SCRIPT = """
import logging, os, signal, sys
import keras, numpy as np
from keras_preempt import PreemptionCallback

class Says(keras.callbacks.Callback):
    epoch = 0
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        logging.getLogger("keras_preempt").warning("begins %d", epoch)
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 2:
            for text in ("first", "second"):
                logging.getLogger("keras_preempt").warning("%s in %d", text, self.epoch)
        if (self.epoch, batch) == (1, 3):
            os.kill(os.getpid(), signal.SIGTERM)
    def on_test_begin(self, logs=None):
        logging.getLogger("keras_preempt").warning("validates %d", self.epoch)
    def get_state(self):
        return {}
    def set_state(self, state):
        pass

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((20, 2))
callbacks = [Says(), PreemptionCallback(sys.argv[1])]
data = {"validation_data": (x, x[:, 0]), "batch_size": 4}
model.fit(x, x[:, 0], epochs=3, verbose=int(sys.argv[2]), callbacks=callbacks, **data)
"""

SAID = ["begins 0", "first in 0", "second in 0", "validates 0", "begins 1", "first in 1", "second in 1"]
MARK = "keras_preempt: "
ENV = {**os.environ, **QUIET_CPU}


def _command(folder: Path, verbose: int) -> list[str]:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    return [*python(), str(script), str(folder / "run"), str(verbose)]


def _run(folder: Path, verbose: int, *, terminal: bool) -> str:
    """Runs the script with both streams on one terminal or pipe; returns all that it has shown."""
    reading, writing = pty.openpty() if terminal else os.pipe()
    shown = b""
    with subprocess.Popen(_command(folder, verbose), stdout=writing, stderr=writing, env=ENV) as process:
        os.close(writing)
        with contextlib.suppress(OSError), os.fdopen(reading, "rb", buffering=0) as stream:
            while piece := stream.read(1 << 16):  # A terminal ends with an error.
                shown += piece
    assert process.returncode == 75, shown.decode()
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("verbose", "terminal"),
    [
        (1, True),
        (2, False),
        *(
            pytest.param(*each, marks=pytest.mark.chaos)
            for each in ((0, True), (0, False), (1, False), (2, True))
        ),
    ],
)
def test_every_line_begins_on_a_line_of_its_own(tmp_path: Path, verbose: int, terminal: bool) -> None:
    shown = _run(tmp_path, verbose, terminal=terminal)
    lines = [line for line in shown.split("\n") if MARK in line]
    assert [line.removeprefix(MARK) for line in lines if line.removeprefix(MARK) in SAID] == SAID
    assert any("Saved step-00000009" in line for line in lines)
    assert all(line.startswith(MARK) for line in lines), lines
    assert ("━" in shown) == (verbose == 1)  # The bar was there.
    ours = shown[shown.index(MARK) :]
    assert "\n\n" not in ours, ours


def test_a_line_elsewhere_leaves_the_bar_alone(tmp_path: Path) -> None:
    done = subprocess.run(_command(tmp_path, 1), capture_output=True, text=True, env=ENV, timeout=240)
    assert done.returncode == 75, done.stderr
    assert "second in 1\n" in done.stderr
    assert "\n\n" not in done.stderr[done.stderr.index(MARK) :]
