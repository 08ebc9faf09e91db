"""The tests of the JAX backend, in a process in which Keras runs on JAX; and that none of it needs TensorFlow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.backend.programs import python

pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")

ROOT = Path(__file__).parents[2]


def test_the_tests_of_the_backend_pass_and_none_is_left_out() -> None:
    plain = "-m pytest tests/backend/jax -q -p no:cacheprovider -p no:xdist"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    run = subprocess.run(
        [sys.executable, *plain.split()],
        cwd=ROOT,
        env={**environment, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert (counts := re.search(r"^(\d+) passed in", run.stdout, re.M)), run.stdout[-600:]
    assert int(counts[1]) > 100


FIT = """
import os, signal, sys
import keras, numpy as np
import keras_preempt

PREEMPTED = False

class At(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if PREEMPTED and (batch, self.epoch) == (2, 1):
            os.kill(os.getpid(), signal.SIGTERM)
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def get_state(self):
        return {}
    def set_state(self, state):
        pass

def fit(folder, *others):
    keras.utils.clear_session()  # Names of layers begin anew, too.
    keras.utils.set_random_seed(1)
    x = np.random.rand(50, 4).astype("float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.4), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    callbacks = [*others, keras_preempt.PreemptionCallback(folder)]
    history = model.fit(x, x.sum(1), batch_size=10, epochs=3, verbose=0, callbacks=callbacks)
    assert sys.modules.get("tensorflow") is None
    values = [v.numpy().tolist() for v in model.variables]
    print("END", history.history["loss"], np.random.rand(), values)

if len(sys.argv) > 2:
    fit(sys.argv[2], At())
    PREEMPTED = True
fit(sys.argv[1], At())
"""


FORBIDDEN = "import sys; sys.modules['tensorflow'] = None"
"""Python's own way to have an import fail: see the documentation of sys.modules."""


def _fit(*folders: Path, first: str = "") -> subprocess.CompletedProcess[str]:
    """Fits in the first folder; with a second one, undisturbed in that, and preempted in the first."""
    without = () if first else ("tensorflow",)
    return python(f"{first}\n{FIT}", *folders, without=without, KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")


def _end(run: subprocess.CompletedProcess[str]) -> str:
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("END ")]
    return line


@pytest.mark.parametrize("first", ["", FORBIDDEN], ids=["not installed", "forbidden"])
def test_where_tensorflow_cannot_be_imported_a_fit_is_preempted_and_continues_with_the_same_bits(
    first: str, tmp_path: Path
) -> None:
    run = _fit(tmp_path / "preempted", tmp_path / "undisturbed", first=first)
    assert run.returncode == 75, run.stderr
    assert "epoch 1, train batch 3" in run.stderr
    resumed = _fit(tmp_path / "preempted", first=first)
    assert resumed.returncode == 0, resumed.stderr
    assert _end(resumed) == _end(run)
