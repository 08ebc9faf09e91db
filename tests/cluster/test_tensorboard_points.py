"""TensorBoard shows what interruptions have cost a run, once for each step, and nothing of it can harm the run."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.report import events, progress
from keras_preempt.report import tensorboard as tensorboard_points
from keras_preempt.report.loading import Loader
from keras_preempt.report.tensorboard import GOODPUT, LOST_STEPS, SAVE_SECONDS, Points
from tests.cluster import small_fit

OURS = (GOODPUT, LOST_STEPS, SAVE_SECONDS)

pytestmark = pytest.mark.usefixtures("nowhere", "everything_is_given_back")


class Run:
    """A run of 3 epochs of 4 steps with a TensorBoard, in this process."""

    def __init__(self, folder: Path) -> None:
        self.directory = folder / "run"
        self._folder = folder / "board"

    def board(self) -> keras.callbacks.TensorBoard:
        # As our own points, Keras' are by step then.
        made = keras.callbacks.TensorBoard(str(self._folder), write_graph=False, update_freq="batch")
        made.set_model(small_fit.make_model())
        return made

    def fit(self, *more: keras.callbacks.Callback, **options: Any) -> list[tuple[int, int]]:
        return small_fit.fit(self.directory, epochs=3, more=[self.board(), *more], **options)

    def points(self) -> Mapping[str, list[tuple[int, float]]]:
        """Step and value of each point in the training curves, by name, as TensorBoard reads them."""
        board = EventAccumulator(str(self._folder / "train"), size_guidance={"tensors": 0}).Reload()
        return {
            name: [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in board.Tensors(name)]
            for name in board.Tags()["tensors"]
            if name.startswith(("keras_preempt/", "batch_loss"))
        }


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_a_preempted_run_shows_its_saves_and_its_goodput_and_that_no_step_is_lost(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    caplog.set_level(logging.INFO, "keras_preempt")
    run.fit(strike=(0, 2))
    # Written before the process ends.
    assert steps(run.points()) == {"batch_loss": [1, 2, 3], SAVE_SECONDS: [3]}
    assert any(line.startswith("Saving step-00000003/") and "MiB in 0 s" in line for line in caplog.messages)
    run.fit(strike=(1, 2))
    assert any(line.startswith("Reading step-00000003/") and "MiB in 0 s" in line for line in caplog.messages)
    run.fit()
    run.fit()  # Nothing is left to train.
    points = run.points()
    assert steps(points) == {
        "batch_loss": list(range(1, 13)),
        SAVE_SECONDS: [3, 7, 12],
        GOODPUT: [4, 8, 12],
        LOST_STEPS: [4, 8, 12],
    }
    assert all(seconds > 0 for _, seconds in points[SAVE_SECONDS])
    assert all(0 < goodput < 1 for _, goodput in points[GOODPUT])
    assert [lost for _, lost in points[LOST_STEPS]] == [0, 0, 0]


def test_the_points_are_those_of_the_report_and_steps_that_are_run_again_have_one_each(run: Run) -> None:
    run.fit(strike=(0, 2))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            run.fit(small_fit.Then((1, 0), lambda: 1 // 0))  # Runs steps 4 and 5, and keeps nothing of them.
    run.fit(save_every="epoch")
    points = run.points()
    report = Loader(LocalStore(run.directory)).load()
    assert points[LOST_STEPS] == [(4, 0), (5, 2), (6, 4), (12, 4)]
    assert report.lost == 4
    assert steps(points)[GOODPUT] == [4, 5, 6, 12]
    assert points[GOODPUT][-1][1] == pytest.approx(
        report.goodput, rel=0.2
    )  # The report is made a moment later.
    assert steps(points)[SAVE_SECONDS] == [3, 4, 8, 12]
    taken = {save.step: save.seconds for save in reversed(report.saves)}  # Two are of step 12.
    for step, seconds in points[SAVE_SECONDS]:
        assert seconds == pytest.approx(taken[step], abs=0.2)


def test_a_board_that_cannot_be_written_harms_neither_training_nor_its_saves(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    importlib.import_module(
        "tensorflow.summary"
    )  # As Keras does, which binds `tf.summary` to another module.
    real = tf.summary.scalar
    is_full = threading.Event()

    def full(name: str, *arguments: Any, **options: Any) -> Any:
        if name in OURS and is_full.is_set():
            raise tf.errors.ResourceExhaustedError(None, None, "no space left on device")
        return real(name, *arguments, **options)

    monkeypatch.setattr(tf.summary, "scalar", full)
    caplog.set_level(logging.WARNING, "keras_preempt")
    is_full.set()
    run.fit(strike=(0, 2), save_every=1)
    assert SAVE_SECONDS not in run.points()
    is_full.clear()
    run.fit()
    assert len(run.points()["batch_loss"]) == 12
    assert run.points()[SAVE_SECONDS][-1][0] == 12  # The disk had room again.
    assert Loader(LocalStore(run.directory)).load().step == 12
    told = [line for line in caplog.messages if "TensorBoard" in line]
    assert len(told) == 1
    assert "no space left on device" in told[0]


def test_a_bucket_that_fails_at_the_end_costs_the_last_point_alone(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(*arguments: Any) -> Any:
        raise StoreUnavailable("503 from storage")

    monkeypatch.setattr("keras_preempt.report.events.read", unavailable)
    caplog.set_level(logging.WARNING, "keras_preempt")
    run.fit()
    assert steps(run.points()) == {"batch_loss": list(range(1, 13)), SAVE_SECONDS: [12]}
    assert [line for line in caplog.messages if "TensorBoard" in line] == [
        "TensorBoard lacks points about this run (503 from storage); training goes on."
    ]


def test_reading_that_takes_too_long_does_not_hold_up_the_end_of_training(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, ended, real = threading.Event(), threading.Event(), events.read

    def slow(*arguments: Any) -> Any:
        reading.set()
        assert ended.wait(60)
        return real(*arguments)

    monkeypatch.setattr(events, "read", slow)
    monkeypatch.setattr(tensorboard_points, "PATIENCE", 0.1)
    monkeypatch.setattr(tensorboard_points, "_MOMENT", 0.1)
    try:
        with caplog.at_level(logging.INFO, "keras_preempt"):
            run.fit()
        assert reading.is_set()
        assert "TensorBoard does not get the last keras_preempt/goodput" in caplog.text
    finally:
        ended.set()
        for thread in threading.enumerate():
            if thread.name == "keras_preempt-points":
                thread.join(60)
    assert GOODPUT not in run.points()  # Nor later: Keras has closed the file.


def test_a_step_has_one_point_although_it_is_saved_twice_and_reached_by_several_starts(run: Run) -> None:
    store = LocalStore(run.directory)
    store.prepare()
    for start, reached in ((1, 10), (2, 11), (3, 11)):  # The third one has put its point at step 12.
        log = events.EventLog(0)
        log.open(start, store.append_log(events.log_name(start, 0)))
        for kind in ("start", "ready", "first_step"):
            log.emit(kind, step=reached, members=1)
        log.close()
    points = Points([run.board()], str(run.directory), 4, 10)
    for step in (10, 11, 11, 12, 12):
        points.saved(step, 1.0)
    assert steps(run.points())[SAVE_SECONDS] == [11, 12]  # At once: a process may be killed.
    points.finished(12)
    points.finished(13)
    points.close()
    points.saved(14, 1.0)
    assert steps(run.points()) == {SAVE_SECONDS: [11, 12], GOODPUT: [13], LOST_STEPS: [13]}


def test_nothing_is_read_for_a_fit_without_a_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", lambda self: pytest.fail("something is read"))
    points = Points([keras.callbacks.History()], "nowhere", 2, None)
    points.saved(1, 1.0)
    points.first_step(1)
    points.finished(2)
    points.close()


def steps(points: Mapping[str, list[tuple[int, float]]]) -> dict[str, list[int]]:
    return {name: [step for step, _ in found] for name, found in points.items()}
