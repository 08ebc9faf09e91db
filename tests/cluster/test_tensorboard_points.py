"""TensorBoard shows what interruptions have cost a run, once for each step, and nothing of it can harm the run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from keras_preempt import events, progress, tensorboard_points
from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.local_store import LocalStore
from keras_preempt.report.loading import load
from keras_preempt.tensorboard_points import GOODPUT, LOST_STEPS, SAVE_SECONDS, Points
from tests.cluster import small_fit

OURS = (GOODPUT, LOST_STEPS, SAVE_SECONDS)

pytestmark = pytest.mark.usefixtures("nowhere", "everything_is_given_back")


class Crash(keras.callbacks.Callback):
    """Fails after so many steps of this fit."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._left = steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._left -= 1
        if self._left == 0:
            raise ZeroDivisionError

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


class Run:
    """A run of 3 epochs of 4 steps with a TensorBoard, in this process."""

    def __init__(self, folder: Path) -> None:
        self.directory = folder / "run"
        self._board = folder / "board"

    def fit(self, *more: keras.callbacks.Callback, **options: Any) -> list[tuple[int, int]]:
        # As Keras' own are, by step: so that they are to be seen on one axis.
        board = keras.callbacks.TensorBoard(str(self._board), write_graph=False, update_freq="batch")
        return small_fit.fit(self.directory, epochs=3, more=[board, *more], **options)

    def crash(self, steps: int, **options: Any) -> None:
        with pytest.raises(ZeroDivisionError):
            self.fit(Crash(steps), **options)

    def points(self) -> Mapping[str, list[tuple[int, float]]]:
        """Step and value of each point in the training curves, by name, as TensorBoard reads them."""
        board = EventAccumulator(str(self._board / "train"), size_guidance={"tensors": 0}).Reload()
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
    with caplog.at_level(logging.INFO, "keras_preempt"):
        run.fit(strike=(0, 2))
    assert steps(run.points()) == {
        "batch_loss": [1, 2],
        SAVE_SECONDS: [2],
    }  # Written before the process ends.
    assert any(line.startswith("Saving step-00000002/") and "MiB in 0 s" in line for line in caplog.messages)
    with caplog.at_level(logging.INFO, "keras_preempt"):
        run.fit(strike=(1, 2))
    assert any(line.startswith("Reading step-00000002/") and "MiB in 0 s" in line for line in caplog.messages)
    run.fit()
    run.fit()  # Nothing is left to train.
    points = run.points()
    assert steps(points) == {
        "batch_loss": list(range(1, 13)),
        SAVE_SECONDS: [2, 6, 12],
        GOODPUT: [3, 7, 12],
        LOST_STEPS: [3, 7, 12],
    }
    assert all(seconds > 0 for _, seconds in points[SAVE_SECONDS])
    assert all(0 < goodput < 1 for _, goodput in points[GOODPUT])
    assert [lost for _, lost in points[LOST_STEPS]] == [0, 0, 0]


def test_the_points_are_those_of_the_report(run: Run) -> None:
    run.crash(5, save_every=2)  # Step 5 is lost: the save of step 4 is the last one.
    run.fit()
    points = run.points()
    report = load(LocalStore(run.directory))
    assert points[LOST_STEPS] == [(5, 1), (12, 1)]
    assert report.lost == 1
    # The report is made a moment later.
    assert points[GOODPUT][-1][1] == pytest.approx(report.goodput, rel=0.2)
    taken = {save.step: save.seconds for save in report.saves}
    assert dict(points[SAVE_SECONDS]) == {step: pytest.approx(taken[step], abs=0.2) for step in (2, 4, 12)}


def test_steps_that_are_run_again_and_again_have_one_point_each(run: Run) -> None:
    run.crash(3, save_every=2)
    for _ in range(3):
        run.crash(1)  # Each runs step 3, and keeps nothing of it.
    run.fit()
    found = steps(run.points())
    assert found[GOODPUT] == found[LOST_STEPS] == [3, 4, 5, 6, 12]
    assert [lost for _, lost in run.points()[LOST_STEPS]] == [1, 2, 3, 4, 4]


def test_a_board_that_cannot_be_written_harms_neither_training_nor_its_saves(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tf.summary.scalar

    def full(name: str, *arguments: Any, **options: Any) -> Any:
        if name in OURS:
            raise tf.errors.ResourceExhaustedError(None, None, "no space left on device")
        return real(name, *arguments, **options)

    monkeypatch.setattr(tf.summary, "scalar", full)
    with caplog.at_level(logging.WARNING, "keras_preempt"):
        run.fit(strike=(0, 2), save_every=1)
        run.fit()
    assert len(run.points()["batch_loss"]) == 12
    assert load(LocalStore(run.directory)).step == 12
    told = [line for line in caplog.messages if "TensorBoard" in line]
    assert len(told) == 2  # One for each fit.
    assert "no space left on device" in told[0]


def test_a_bucket_that_fails_at_the_end_costs_the_last_point_alone(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(*arguments: Any) -> Any:
        raise StoreUnavailable("503 from storage")

    monkeypatch.setattr("keras_preempt.events.read", unavailable)
    with caplog.at_level(logging.WARNING, "keras_preempt"):
        run.fit()
    assert steps(run.points()) == {"batch_loss": list(range(1, 13)), SAVE_SECONDS: [12]}
    assert [line for line in caplog.messages if "TensorBoard" in line] == [
        "TensorBoard gets no more points about this run (503 from storage); training goes on."
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


def test_only_the_chief_and_only_a_tensorboard_have_points(tmp_path: Path) -> None:
    board = keras.callbacks.TensorBoard(str(tmp_path / "board"), write_graph=False)
    board.set_model(small_fit.make_model())
    for callbacks in ((), (keras.callbacks.History(),)):
        points = Points(callbacks, "nowhere", 2, None)
        points.saved(1, 1.0)
        points.first_step(1)
        points.finished(2)
    assert threading.active_count() == 1 or not any("points" in t.name for t in threading.enumerate())


def steps(points: Mapping[str, list[tuple[int, float]]]) -> dict[str, list[int]]:
    return {name: [step for step, _ in found] for name, found in points.items()}
