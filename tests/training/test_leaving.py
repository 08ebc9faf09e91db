"""A process that ends waits for no iterator; a program that goes on after a preemption keeps none."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import tensorflow as tf

from keras_preempt.backend.tensorflow import datasets
from keras_preempt.notices.platform import GENERIC
from keras_preempt.notices.termination import TerminationConfig, complete
from keras_preempt.process.exit_codes import EXIT_RESTART
from keras_preempt.training import leaving

TRAINED = """
import ctypes, os, signal, sys, weakref
import keras, numpy as np, tensorflow as tf
from keras_preempt import PreemptionCallback
from keras_preempt.backend.tensorflow import datasets

class Told(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3:
            for each in datasets.iterators():
                kind = type(each).__name__
                print("there:", kind, flush=True)
                line = f"dropped: {kind}\\n".encode()
                told.append(weakref.ref(each, lambda _, line=line, write=os.write: write(1, line)))
            if "finished" not in sys.argv:
                os.kill(os.getpid(), signal.SIGTERM)
    def get_state(self): return {}
    def set_state(self, state): pass

told = []
ctypes.pythonapi.Py_IncRef(ctypes.py_object(told))  # It outlasts this module.
strategy = tf.distribute.MirroredStrategy(["CPU:0"]) if "mirrored" in sys.argv else tf.distribute.get_strategy()
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices((np.ones((80, 2)), np.ones((80, 1)))).batch(4)
of_the_module = iter(data)
def train():
    of_the_frame = iter(data)
    log = open(sys.argv[2], "w")
    log.write("written, and flushed as the frame goes")
    model.fit(data, verbose=0, callbacks=[PreemptionCallback(sys.argv[1]), Told()])
train()
os.write(1, b"END\\n")
"""


def _ended(folder: Path, *how: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", TRAINED, str(folder / "run"), str(folder / "log"), *how]
    environment = {**os.environ, "KERAS_PREEMPT_PLATFORM": "generic", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)


def test_a_process_whose_training_is_over_drops_no_iterator_at_its_end(tmp_path: Path) -> None:
    done = _ended(tmp_path, "mirrored", "finished")
    assert done.returncode == 0, done.stdout + done.stderr
    training, _, end = done.stdout.partition("END\n")
    assert training.count("there: OwnedIterator") > training.count("dropped: OwnedIterator")
    assert "dropped" not in end


@pytest.mark.parametrize("where", ["one", "mirrored"])
def test_a_preempted_process_drops_no_iterator_and_all_else_as_ever(where: str, tmp_path: Path) -> None:
    done = _ended(tmp_path, where)
    assert done.returncode == EXIT_RESTART, done.stdout + done.stderr
    assert "there: OwnedIterator" in done.stdout
    assert ("there: DistributedIterator" in done.stdout) == (where == "mirrored")
    assert "dropped" not in done.stdout
    assert (tmp_path / "log").read_text() == "written, and flushed as the frame goes"


def test_a_program_that_catches_the_exit_keeps_its_iterators_until_it_trains_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaving.atexit, "register", lambda function: None)
    iterator = iter(tf.data.Dataset.range(9))
    dropped = weakref.ref(iterator)
    with pytest.raises(SystemExit):
        leaving.leave(complete(TerminationConfig(), GENERIC), 75, "")
    del iterator
    assert dropped() is not None
    leaving.stay()
    assert dropped() is None


def test_every_kind_of_iterator_is_found() -> None:
    data = tf.data.Dataset.range(9).batch(1)
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    made = [iter(data), iter(strategy.experimental_distribute_dataset(data))]
    found = {id(each) for each in datasets.iterators()}
    assert {id(each) for each in made} <= found
