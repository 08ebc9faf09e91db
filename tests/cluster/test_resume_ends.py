"""How a run ends, and what starting it again does.

| guarantee | one device | 2 workers |
|---|---|---|
| the callback changes no bit of a training | x | |
| EarlyStopping stops at the same epoch and restores the same weights | x | x |
| a finished run started again returns its full History at once | x | x |
| a notice in the last step of the run: it finishes | x | x |
| a finished run given more epochs goes on, as if they had been asked for at once | x | x |
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cluster.training import Strike, Training, Undisturbed

STOP_EARLY = ("--stop-early",)
NO_VALIDATION = ("--no-validation",)


def test_the_callback_changes_no_bit_of_a_training(tmp_path: Path, undisturbed: Undisturbed) -> None:
    plain = Training(tmp_path, args=["--plain"])
    plain.finish()
    plain.assert_same(undisturbed(1))
    assert not plain.directory.exists()


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.chaos)])
def test_early_stopping_stops_where_it_would_have(
    workers: int, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = Training(tmp_path, workers, STOP_EARLY)
    training.preempt(Strike("test_batch 0 2", (workers - 1,)))
    training.finish()
    expected = undisturbed(workers, *STOP_EARLY)
    assert max(int(step.split()[1]) for step in expected.steps(0)) < 3, "it has to stop before the last epoch"
    training.assert_same(expected)
    if workers == 1:  # It stopped: there is nothing left to do, not even with epochs left.
        training.finish()
        training.assert_same(expected)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.chaos)])
def test_a_finished_run_started_again_returns_its_full_history_at_once(
    workers: int, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    finished = undisturbed(workers)
    again = Training(tmp_path, workers)
    shutil.copytree(finished.directory, again.directory)
    again.finish()
    assert again.steps(0) == []
    again.assert_same_end(finished)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_notice_in_the_last_step_lets_the_run_finish_and_more_epochs_go_on(
    workers: int, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = Training(tmp_path, workers, NO_VALIDATION)
    training.finish(Strike("done 1 5", tuple(range(workers))), args=["--epochs", "2"])
    assert all("finish" in training.events(worker)[0] for worker in range(workers))
    training.finish()
    training.assert_same(undisturbed(workers, *NO_VALIDATION))
