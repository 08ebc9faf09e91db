"""SIGKILL, at any point of a save or in mid-training: the newest committed checkpoint is what counts.

| killed | one device | 2 workers |
|---|---|---|
| at each point of a save, with everyone | x | chaos |
| the committer, between files and after the manifest | | x; at every point: chaos |
| while reading a checkpoint | x | |
| the worker under notice, right after the alignment; also worker 0 | | x |
| a worker without any notice in mid-training; also worker 0 | x | x |
| a disk that fails during a save | x | |
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from keras_preempt.checkpoint.failpoints import NAMES, VARIABLE
from keras_preempt.process.exit_codes import EXIT_WORKER_LOST
from tests.cluster.training import PREEMPTED, Strike, Training, Undisturbed

SAVE_POINTS = [name for name in NAMES if name.startswith("save.")]
NOT_SAVED = 74


def assert_restored(training: Training, checkpoint: str) -> None:
    """The last incarnation says that it went on from that one, to the tools and to whoever reads its log."""
    for worker in range(training.workers):
        assert training.events(worker)[-1]["restore"][0]["checkpoint"] == checkpoint
        assert re.search(rf"Continuing from {checkpoint}: .*newest", training.results[-1].outputs[worker])


def go_through_crashes(training: Training, points: list[str], doomed: int, killed: tuple[int, ...]) -> None:
    """Saves once, then crashes at each point of the next save, and checks what every start went on from."""
    training.preempt(Strike("batch 0 2", (doomed,)))
    for number, point in enumerate(points):
        before = training.checkpoints
        place = f"batch {1 + number // 5} {number % 5}"
        training.crash(Strike(place, (doomed,)), failpoints=dict.fromkeys(killed, point))
        assert_restored(training, before[-1])
        committed = [name for name in training.checkpoints if name not in before]
        assert len(committed) == (point == "save.after-manifest"), point
    newest = training.checkpoints[-1]
    training.finish()
    assert_restored(training, newest)


def assert_same_after_crashes(training: Training, expected: Training) -> None:
    """What was run twice gave the same twice, and the end is the same."""
    for worker in range(training.workers):
        wrong = set(training.steps(worker)) ^ set(expected.steps(worker))
        assert not wrong, "\n".join(sorted(wrong))
    training.assert_same_end(expected)


def test_a_process_killed_at_any_point_of_its_save_goes_on_from_the_newest_checkpoint(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = Training(tmp_path)
    go_through_crashes(training, SAVE_POINTS, doomed=0, killed=(0,))
    assert_same_after_crashes(training, undisturbed(1))


@pytest.mark.parametrize(
    "points",
    [
        ["save.between-parts", "save.after-manifest"],
        pytest.param(SAVE_POINTS, marks=pytest.mark.chaos),
    ],
    ids=["some", "all"],
)
def test_workers_whose_committer_is_killed_go_on_from_the_newest_checkpoint(
    points: list[str], tmp_path: Path, undisturbed: Undisturbed
) -> None:
    # The machine of the survivor goes before it can know; if it does know: tests/cluster/test_writers_lost.py.
    training = Training(tmp_path, 2)
    go_through_crashes(training, points, doomed=0, killed=(1,))
    assert_same_after_crashes(training, undisturbed(2))


@pytest.mark.chaos
def test_workers_killed_together_at_any_point_go_on_from_the_newest_checkpoint(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = Training(tmp_path, 2)
    go_through_crashes(training, SAVE_POINTS, doomed=1, killed=(0, 1))
    assert_same_after_crashes(training, undisturbed(2))


def test_a_process_killed_without_notice_or_while_restoring_goes_on_from_its_checkpoint(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = Training(tmp_path)
    training.preempt(Strike("batch 1 2"))
    saved = training.checkpoints
    training.crash(failpoints={0: "restore.before-read"})
    training.crash(failpoints={0: "restore.after-read"})
    training.crash(Strike("batch 3 2", signal="SIGKILL"))
    # A disk that fails is no preemption: it has to be seen, and the checkpoint before it stays.
    failed = training.start(Strike("batch 2 1"), env={VARIABLE: "save.between-parts=raise"})
    failed.assert_codes(NOT_SAVED)
    assert "NOT saved" in failed.outputs[0]
    assert training.checkpoints == saved
    # What was written of it is gone at once, and what the killed ones have left with the next commit.
    assert {path.parent.name for path in training.directory.glob("step-*/*/*")} == {Path(saved[-1]).name}
    training.finish()
    assert_restored(training, saved[-1])
    assert_same_after_crashes(training, undisturbed(1))


def test_a_worker_killed_without_notice_ends_its_peer_with_an_error_and_loses_no_checkpoint(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = Training(tmp_path, 2)
    training.preempt(Strike("batch 1 2", (0,)))
    saved = training.checkpoints[-1]
    for killed in (1, 0):  # Worker 0 hosts the coordination service.
        result = training.start(Strike("batch 2 3", (killed,), signal="SIGKILL", settle=False))
        assert result.codes[killed] == -9
        assert (
            result.codes[1 - killed] == EXIT_WORKER_LOST
        )  # Told from an error of the program, and a preemption.
        assert result.seconds < 120
    training.finish()
    assert_restored(training, saved)
    assert_same_after_crashes(training, undisturbed(2))


def test_a_worker_killed_right_after_the_alignment_does_not_stop_the_survivor_from_committing(
    tmp_path: Path,
) -> None:
    training = Training(tmp_path, 2)
    for epoch, doomed in enumerate((1, 0, None)):
        cut = {} if doomed is None else {doomed: {VARIABLE: "save.before-parts=kill"}}
        strikes = [] if doomed is None else [Strike(f"batch {epoch} 2", (doomed,))]
        result = training.start(*strikes, per_worker_env=cut)
        expected = [-9 if worker == doomed else PREEMPTED if strikes else 0 for worker in range(2)]
        result.assert_codes(*expected)
        if strikes:
            assert training.events(1 - doomed)[-1]["commit"][0]["missing"] == [doomed]
        for worker in range(2) if epoch else ():
            # What is not exact is told by the worker whose part is missing, and only by it.
            inexact = worker == epoch % 2
            restore = training.events(worker)[-1]["restore"][0]
            assert restore["substituted_from"] == (1 - worker if inexact else None)
            assert (f"NOT exact: worker {worker}" in result.outputs[worker]) == inexact
