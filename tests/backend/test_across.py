"""A run of one backend of Keras, opened on another: refused with the backend to set; its weights can be taken over.

What is not about checkpoints that were moved runs where torch is installed beside TensorFlow or JAX, as `make versions`
has it; between these two see `test_on_jax`.
"""

from __future__ import annotations

import functools
import itertools
import shutil
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.backend.programs import python

PROGRAM = """
import os, signal, sys
import keras, numpy as np
import keras_preempt

directory, strike, kind = sys.argv[1:]

class At(keras.callbacks.Callback):
    keeps_state = False
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_begin(self, batch, logs=None):
        print("STEP", self.epoch, batch)
        if f"{self.epoch} {batch}" == strike:
            os.kill(os.getpid(), signal.SIGTERM)

keras.utils.set_random_seed(1)
x = np.random.rand(50, 4).astype("float32")
layers = [keras.layers.Dropout(0.4, name="drop"), keras.layers.Dense(1, name="dense")]
model = keras.Sequential([keras.Input((4,)), *layers], name="same")
model.compile(keras.optimizers.Adam(name="adam"), "mse")
if strike == "load":
    keras_preempt.load_weights(model, directory)
else:
    data = (x, x.sum(1))
    if kind == "tf.data":
        import tensorflow as tf
        data = (tf.data.Dataset.from_tensor_slices(data).shuffle(50, seed=3).batch(10),)
    callbacks = [At(), keras_preempt.PreemptionCallback(directory)]
    size = {} if kind == "tf.data" else {"batch_size": 10}
    model.fit(*data, **size, epochs=3, verbose=0, callbacks=callbacks)
print("END", [keras.ops.convert_to_numpy(v).tobytes().hex() for v in model.weights])
"""

INSTALLED = [name for name in ("tensorflow", "jax", "torch") if find_spec(name)]
PAIRS = list(itertools.permutations(INSTALLED, 2))
WITH_TORCH = [pair for pair in PAIRS if "torch" in pair]

across = pytest.mark.parametrize(("before", "now"), WITH_TORCH)
across_all = pytest.mark.parametrize(
    ("before", "now"), [pair for pair in PAIRS if pair in WITH_TORCH or pair == ("tensorflow", "jax")]
)

Run = Callable[..., Path]


def start(
    directory: Path, backend: str, strike: str = "", data: str = "arrays"
) -> subprocess.CompletedProcess[str]:
    quiet = {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "TF_ENABLE_ONEDNN_OPTS": "0"}
    others = {"tensorflow", "jax", "torch"} - {backend, "tensorflow" if data == "tf.data" else ""}
    return python(PROGRAM, directory, strike, data, without=tuple(others), KERAS_BACKEND=backend, **quiet)


def said(run: subprocess.CompletedProcess[str], kind: str) -> list[str]:
    return [line for line in run.stdout.splitlines() if line.startswith(kind)]


def tree(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def preempted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The directory of a run on a backend that was preempted, in its second epoch unless another place is given."""

    @functools.cache
    def get(backend: str, strike: str = "1 2") -> Path:
        directory = tmp_path_factory.mktemp(backend) / "run"
        run = start(directory, backend, strike)
        assert run.returncode == 75, run.stderr
        return directory

    return get


def assert_refused(directory: Path, now: str, *said_why: str) -> None:
    """Asserts that a start trains nothing, says why, and changes nothing."""
    kept = tree(directory)
    run = start(directory, now)
    assert (run.returncode, said(run, "STEP")) == (1, [])
    for words in said_why:
        assert words in run.stderr
    assert tree(directory) == kept


@across
def test_it_is_refused_with_the_backend_to_set(before: str, now: str, preempted: Run, tmp_path: Path) -> None:
    directory = shutil.copytree(preempted(before), tmp_path / "run")
    why = f"another backend of Keras, {before}, and this program runs on {now}"
    assert_refused(directory, now, why, f"set KERAS_BACKEND={before} to continue it")


@across
def test_without_what_says_whose_it_is_it_is_refused(
    before: str, now: str, preempted: Run, tmp_path: Path
) -> None:
    directory = shutil.copytree(preempted(before), tmp_path / "run")
    (directory / "run.json").unlink()
    assert_refused(directory, now, "Expected an empty directory or one of keras_preempt's")


@across_all
def test_its_checkpoint_is_not_used_where_run_json_says_to_be_of_this_backend(
    before: str, now: str, preempted: Run, tmp_path: Path
) -> None:
    directory = shutil.copytree(preempted(before), tmp_path / "run")
    shutil.copy(preempted(now) / "run.json", directory)
    assert_refused(
        directory, now, f"saved on another backend of Keras, {before}, and this program runs on {now}"
    )


@across_all
def test_a_checkpoint_that_was_moved_there_is_passed_over(
    before: str, now: str, preempted: Run, tmp_path: Path
) -> None:
    directory = shutil.copytree(preempted(now), tmp_path / "run")
    expected = start(shutil.copytree(directory, tmp_path / "alone"), now)
    (moved,) = preempted(before, "2 2").glob("step-*")
    kept = tree(shutil.copytree(moved, directory / moved.name))
    run = start(directory, now)
    assert f"saved on another backend of Keras, {before}, and this program runs on {now}" in run.stderr
    assert said(run, "STEP") == said(expected, "STEP") != []
    assert said(run, "END") == said(expected, "END") != []
    assert tree(directory / moved.name).items() >= kept.items()


@across
def test_its_weights_are_taken_over_bit_by_bit(before: str, now: str, preempted: Run) -> None:
    here, there = (start(preempted(before), backend, "load") for backend in (now, before))
    assert here.returncode == 0, here.stderr
    assert said(here, "END") == said(there, "END") != []


@pytest.mark.skipif(not {"tensorflow", "torch"} <= {*INSTALLED}, reason="needs TensorFlow and torch")
def test_tf_data_is_replayed_on_torch_as_the_log_says(tmp_path: Path) -> None:
    undisturbed = start(tmp_path / "undisturbed", "torch", data="tf.data")
    preempted = start(tmp_path / "run", "torch", "1 2", data="tf.data")
    assert preempted.returncode == 75, preempted.stderr
    assert "the input continues by replay" in preempted.stderr
    resumed = start(tmp_path / "run", "torch", data="tf.data")
    assert [*said(preempted, "STEP"), *said(resumed, "STEP")] == said(undisturbed, "STEP")
    assert said(resumed, "END") == said(undisturbed, "END") != []
    assert "NOT exact" not in resumed.stderr
