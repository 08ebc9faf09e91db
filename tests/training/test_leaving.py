"""How a process ends: it waits for no iterator, and not for ever for a main thread after another one's error."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import tensorflow as tf

from keras_preempt.agreement.coordinator import CoordinationLost, LocalCoordinator
from keras_preempt.agreement.messages import Failure
from keras_preempt.backend.place import Place
from keras_preempt.backend.seam import backend
from keras_preempt.notices.coordination_key import NOBODY
from keras_preempt.notices.platform import GENERIC
from keras_preempt.notices.termination import Preempted, Termination, TerminationConfig
from keras_preempt.process import end_limit
from keras_preempt.process.exit_codes import EXIT_RESTART
from keras_preempt.training.leave import leaving
from keras_preempt.training.leave.propagation import ErrorWatch

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
    model.compile("sgd", "mse", jit_compile=False)
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


@pytest.mark.parametrize("where", [pytest.param("one", marks=pytest.mark.chaos), "mirrored"])
def test_a_preempted_process_drops_no_iterator_and_all_else_as_ever(where: str, tmp_path: Path) -> None:
    done = _ended(tmp_path, where)
    assert done.returncode == EXIT_RESTART, done.stdout + done.stderr
    assert "there: OwnedIterator" in done.stdout
    assert ("there: DistributedIterator" in done.stdout) == (where == "mirrored")
    assert "dropped" not in done.stdout
    assert (tmp_path / "log").read_text() == "written, and flushed as the frame goes"


def test_a_caught_exit_keeps_the_iterators_until_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving.atexit, "register", lambda function: None)
    iterator = iter(tf.data.Dataset.range(9))
    dropped = weakref.ref(iterator)
    with pytest.raises(SystemExit):
        leaving.end_process(Termination(TerminationConfig(), GENERIC), 75, "")
    del iterator
    assert dropped() is not None
    leaving.stay()
    assert dropped() is None


@pytest.mark.parametrize(
    ("member", "members", "left", "expected"),
    [
        (0, 1, None, leaving.END_SECONDS),
        (1, 2, None, leaving.END_SECONDS),
        (0, 2, None, leaving.LAST_END_SECONDS),
        (1, 2, 10.0, 7.0),
        (1, 2, 1000.0, leaving.END_SECONDS),
        (1, 2, -5.0, 1.0),
    ],
)
def test_python_has_less_than_half_a_minute_to_end_and_no_longer_than_the_machine_is_there(
    member: int, members: int, left: float | None, expected: float
) -> None:
    assert leaving.end_limit_of(Place(member, members), left) == expected
    assert expected + end_limit.LAST_RESORT < 30


def test_an_exit_fn_that_ends_the_process_has_a_limit_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, float]] = []
    monkeypatch.setattr(
        end_limit, "limit_end", lambda status, seconds, before: limits.append((status, seconds))
    )
    with pytest.raises(SystemExit):
        leaving.end_process(Termination(TerminationConfig(exit_fn=lambda: sys.exit(7)), GENERIC), 75, "", 9.0)
    with pytest.raises(Preempted):
        leaving.end_process(Termination(TerminationConfig(exit_fn=lambda: None), GENERIC), 75, "", 9.0)
    assert limits == [(7, 9.0)]


def test_training_again_takes_the_limit_back() -> None:
    with pytest.raises(SystemExit):
        leaving.end_process(Termination(TerminationConfig(), GENERIC), 75, "")
    assert end_limit._limit is not None
    leaving.stay()
    assert end_limit._limit is None


KEY = "keras_preempt/failed"
OF_ANOTHER = Failure(1, "ValueError", 0, "the user's own error")
OWN = Failure(0, "ValueError", 0, "the user's own error")


class Looking(LocalCoordinator):
    """Says when somebody begins to wait for a key, and when that is over."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.over = threading.Semaphore(0), threading.Semaphore(0)

    def wait_for(self, key: str, timeout: float | None) -> str:
        self.begun.release()
        try:
            return super().wait_for(key, timeout)
        finally:
            self.over.release()


class Watched:
    """A watch over a dictionary of keys, and what it has done."""

    def __init__(self, coordinator: LocalCoordinator | None = None, **options: Any) -> None:
        self.coordinator = coordinator or LocalCoordinator()
        self.heard: list[Failure] = []
        self.ended = threading.Event()
        options = {"end": self.ended.set, "patience": 0.01, **options}
        self.watch = ErrorWatch(self.coordinator, KEY, self.heard.append, **options)
        self.watch.start()

    def threads(self) -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name == "keras_preempt-error-watch"]

    def join(self) -> None:
        for thread in self.threads():
            thread.join(10)
        assert not self.threads()


def test_the_process_ends_when_its_main_thread_does_not() -> None:
    watched = Watched()
    watched.coordinator.put_if_absent(KEY, OF_ANOTHER.encode())
    assert watched.ended.wait(10)
    assert watched.heard == [OF_ANOTHER], "it is told before the process ends"
    watched.join()
    watched.watch.stop()


def test_a_main_thread_that_finds_out_by_itself_is_left_alone() -> None:
    looking = Looking()
    watched = Watched(looking, patience=60)
    watched.coordinator.put_if_absent(KEY, OF_ANOTHER.encode())
    assert looking.over.acquire(timeout=10)
    watched.watch.stop()
    watched.join()
    assert not watched.ended.is_set()
    assert watched.heard == []
    assert watched.coordinator.wait_for(KEY, 1) == OF_ANOTHER.encode(), "others still have to hear it"


def test_training_that_ends_well_ends_the_watch_and_leaves_no_key() -> None:
    watched = Watched()
    assert watched.threads()
    watched.watch.stop()
    watched.join()
    assert watched.coordinator.put_if_absent(KEY, OF_ANOTHER.encode()), "the key is free for an error"
    watched.watch.stop()
    assert not watched.ended.is_set()


def test_somebody_who_looks_at_the_key_is_not_a_failure() -> None:
    looking = Looking()
    watched = Watched(looking)
    assert looking.begun.acquire(timeout=10)
    watched.coordinator.put_if_absent(KEY, NOBODY)
    assert looking.begun.acquire(timeout=10), "it waits again"
    assert not watched.ended.is_set()
    watched.coordinator.delete(KEY)
    watched.coordinator.put_if_absent(KEY, OF_ANOTHER.encode())
    assert watched.ended.wait(10)
    watched.watch.stop()


class Lost(LocalCoordinator):
    wait_for = put_if_absent = mock.Mock(side_effect=CoordinationLost("Socket closed"))


class WithOwnFailure(LocalCoordinator):
    def __init__(self) -> None:
        super().__init__()
        self.put_if_absent(KEY, OWN.encode())


@pytest.mark.parametrize("coordinator", [Lost, WithOwnFailure])
def test_a_lost_service_or_an_own_failure_ends_the_watch_alone(coordinator: type[LocalCoordinator]) -> None:
    watched = Watched(coordinator())
    watched.join()
    assert not watched.ended.is_set()
    assert watched.heard == []
    watched.watch.stop()


def test_the_status_is_that_of_an_error_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses: list[int] = []
    watched = Watched(end=None)
    monkeypatch.setattr(backend().errors, "before_a_hard_end", watched.ended.set)
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    monkeypatch.setattr(os, "_exit", statuses.append)
    watched.coordinator.put_if_absent(KEY, OF_ANOTHER.encode())
    watched.join()
    assert statuses == [1]
    assert watched.heard == [OF_ANOTHER]
    assert watched.ended.is_set()
