"""Saves where no thread can be started any more, as under a limit on the number of processes, or no memory is left."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_preempt import PreemptionCallback, TerminationConfig
from keras_preempt.backend import copies
from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.reader import verify
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.process.exit_codes import EXIT_NOT_SAVED, EXIT_RESTART
from keras_preempt.training.save.saver import Saver
from tests import fits
from tests.cluster.noticed_fit import Model

X, Y = np.arange(64, dtype="float32").reshape(16, 4) / 64, np.ones((16, 1), "float32")


@pytest.fixture(autouse=True)
def _new_process() -> None:
    fits.forget()


def train(directory: Path, at_step_3: Any) -> list[int]:
    """Trains two epochs of four steps, and returns the steps of the checkpoints that are there then."""
    model = Model()
    model.begin_anew()
    looks = fits.Doing(on_train_batch_end=lambda batch, logs: at_step_3() if batch == 2 else None)
    callback = PreemptionCallback(directory, save_every=2, max_to_keep=10)
    model.keras.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=[callback, looks])
    store = LocalStore(directory)
    for info in committed(store):
        verify(store, info)
    return sorted(info.step for info in committed(store))


def test_where_no_thread_can_be_started_training_waits_for_its_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = train(tmp_path / "with", lambda: None)
    start = threading.Thread.start

    def start_no_more(self: threading.Thread) -> None:
        if self.name.startswith("keras_preempt-"):
            raise RuntimeError("can't start new thread")
        start(self)

    assert (
        train(tmp_path / "without", lambda: monkeypatch.setattr(threading.Thread, "start", start_no_more))
        == expected
    )
    assert "no thread could be started" in caplog.text


def test_where_there_is_no_memory_for_a_copy_training_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_left(*_: Any, **__: Any) -> Any:
        raise MemoryError("Unable to allocate 9.31 GiB")

    expected = train(tmp_path / "with", lambda: None)
    assert train(tmp_path / "without", lambda: monkeypatch.setattr(copies, "empty", none_left)) == expected
    assert "no memory for a copy" in caplog.text


def test_a_save_for_which_there_is_no_memory_at_all_fails_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fetch = Saver.prepare
    failing = [True, True]

    def fetch_later(self: Saver, *arguments: Any, **options: Any) -> Any:
        if failing:
            failing.pop()
            raise MemoryError("Unable to allocate 9.31 GiB")
        return fetch(self, *arguments, **options)

    expected = train(tmp_path / "with", lambda: None)
    steps = train(tmp_path / "without", lambda: monkeypatch.setattr(Saver, "prepare", fetch_later))
    assert "The checkpoint at step 4 was NOT saved: MemoryError: Unable to allocate" in caplog.text
    assert steps == [step for step in expected if step != 4]


class StateOfOwn(keras.callbacks.Callback):
    """Its state cannot be had at step 4."""

    def __init__(self, strike: Any = lambda: None) -> None:
        super().__init__()
        self.step = 0
        self._strike = strike

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.step += 1
        if self.step == 4:
            self._strike()

    def get_state(self) -> dict[str, int]:
        if self.step == 4:
            raise ConnectionError("the database does not answer")
        return {"step": self.step}

    def set_state(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def train_beside(own: StateOfOwn, directory: Path, **options: Any) -> None:
    model = Model()
    model.begin_anew()
    callback = PreemptionCallback(directory, max_to_keep=10, **options)
    model.keras.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=[callback, own])


def test_state_that_cannot_be_had_fails_that_save_and_not_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = StateOfOwn()
    train_beside(own, tmp_path, save_every=2)
    assert own.step == 8
    assert "The checkpoint at step 4 was NOT saved: the database does not answer" in caplog.text
    assert sorted(info.step for info in committed(LocalStore(tmp_path))) == [2, 6, 8]


def test_state_that_cannot_be_had_at_a_notice_ends_with_the_status_of_not_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SystemExit) as ended:
        train_beside(StateOfOwn(lambda: signal.raise_signal(signal.SIGTERM)), tmp_path)
    assert ended.value.code == EXIT_NOT_SAVED
    assert "Preempted, and NOT saved at step 4" in caplog.text


def test_without_a_thread_that_counts_the_time_left_training_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = threading.Thread.start

    def start_no_countdown(self: threading.Thread) -> None:
        if self.name == "keras_preempt-countdown":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_no_countdown)
    own = fits.Doing(
        on_train_batch_end=lambda batch, logs: signal.raise_signal(signal.SIGTERM) if batch == 1 else None
    )
    model = Model()
    model.begin_anew()
    callback = PreemptionCallback(tmp_path, termination=TerminationConfig(grace_period=600))
    with pytest.raises(SystemExit) as ended:
        model.keras.fit(X, Y, batch_size=4, epochs=500, shuffle=False, verbose=0, callbacks=[callback, own])
    assert ended.value.code == EXIT_RESTART
    assert "Training ends now, and not later" in caplog.text
    assert "training goes on" not in caplog.text
    assert len(committed(LocalStore(tmp_path))) >= 1


def test_a_save_that_training_waits_for_knows_that_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it waits for other workers, a notice has to be able to cut that."""
    awaited: list[bool] = []
    write = Saver.write

    def told(self: Saver, *arguments: Any, **options: Any) -> Any:
        awaited.append(options.get("awaited", lambda: True)())
        return write(self, *arguments, **options)

    def none_left(*_: Any, **__: Any) -> Any:
        raise MemoryError("Unable to allocate 9.31 GiB")

    monkeypatch.setattr(Saver, "write", told)
    monkeypatch.setattr(copies, "empty", none_left)
    model = Model()
    model.begin_anew()
    callback = PreemptionCallback(tmp_path, save_every=2)
    model.keras.fit(X, Y, batch_size=4, epochs=1, shuffle=False, verbose=0, callbacks=[callback])
    assert awaited[:1] == [True]


def test_a_save_that_has_not_begun_is_no_measure_of_how_long_one_takes(tmp_path: Path) -> None:
    seconds: list[float] = []
    own = StateOfOwn()
    fit = PreemptionCallback(tmp_path, save_every=4)

    def look() -> None:
        time.sleep(0.5)
        seconds.append(fit._fit.runtime.pace.save_seconds)

    looks = fits.Doing(on_train_batch_end=lambda batch, logs: own.step == 5 and look())
    model = Model()
    model.begin_anew()
    model.keras.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=[fit, own, looks])
    assert seconds[0] < 0.5
