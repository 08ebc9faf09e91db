"""SIGKILL, at any point of a save or in mid-training: the newest committed checkpoint is what counts.

| killed | one device | 2 workers |
|---|---|---|
| in a save, with everyone | x; at every point: chaos | at every point: chaos |
| the committer of a save | | at every point: chaos |
| while reading a checkpoint | x | |
| the worker under notice, right after the alignment | | test_other_workers.py; a writer: test_writers_lost.py |
| a worker without any notice in mid-training; also worker 0 | x | x |
| a disk that fails during a save | x | |
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from keras_preempt.checkpoint.failpoints import NAMES, VARIABLE
from keras_preempt.process.exit_codes import EXIT_WORKER_LOST
from tests.cluster.training import Strike, Training, Undisturbed

SAVE_POINTS = [name for name in NAMES if name.startswith("save.")]
NOT_SAVED = 74


def assert_restored(training: Training, checkpoint: str) -> None:
    """The last incarnation says that it went on from that one, to the tools and to whoever reads its log."""
    for worker in range(training.workers):
        assert training.events(worker)[-1]["restore"][0]["checkpoint"] == checkpoint
        assert re.search(rf"Continuing from {checkpoint}: .*newest", training.results[-1].outputs[worker])


def crash_at(training: Training, points: list[str], doomed: int, killed: tuple[int, ...]) -> None:
    """Crashes at each point of a further save, and checks what every start went on from."""
    for number, point in enumerate(points):
        before = training.checkpoints
        place = f"batch {1 + number // 5} {number % 5}"
        training.crash(Strike(place, (doomed,)), failpoints=dict.fromkeys(killed, point))
        assert_restored(training, before[-1])
        committed = [name for name in training.checkpoints if name not in before]
        assert len(committed) == (point == "save.after-manifest"), point


def assert_goes_on(training: Training, undisturbed: Training) -> None:
    """From the newest checkpoint; what was run twice gave the same twice, and the end is the same."""
    newest = training.checkpoints[-1]
    training.finish()
    assert_restored(training, newest)
    for worker in range(training.workers):
        wrong = set(training.steps(worker)) ^ set(undisturbed.steps(worker))
        assert not wrong, "\n".join(sorted(wrong))
    training.assert_same_end(undisturbed)


def test_a_process_killed_in_a_save_in_mid_training_or_while_restoring_goes_on_from_its_checkpoint(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = Training(tmp_path)
    training.preempt(Strike("batch 0 2"))
    saved = training.checkpoints
    training.crash(failpoints={0: "restore.after-read"})
    training.crash(Strike("batch 2 4", signal="SIGKILL"))
    # A disk that fails is no preemption: it has to be seen, and the checkpoint before it stays.
    failed = training.start(Strike("batch 2 1"), env={VARIABLE: "save.between-parts=raise"})
    failed.assert_codes(NOT_SAVED)
    assert "NOT saved" in failed.outputs[0]
    assert training.checkpoints == saved
    # What was written of it is gone at once, and what the killed ones have left with the next commit.
    assert {path.parent.name for path in training.directory.glob("step-*/*/*")} == {Path(saved[-1]).name}
    crash_at(training, ["save.between-parts"], doomed=0, killed=(0,))
    assert_goes_on(training, undisturbed(1))


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("doomed", "killed"), [(0, (0,)), (0, (1,)), (1, (0, 1))], ids=["alone", "committer", "together"]
)
def test_whoever_is_killed_at_any_point_goes_on_from_the_newest_checkpoint(
    doomed: int, killed: tuple[int, ...], tmp_path: Path, undisturbed: Undisturbed
) -> None:
    # The machine of a survivor goes before it can know; if it does know: tests/cluster/test_writers_lost.py.
    training = Training(tmp_path, 1 if killed == (0,) else 2)
    training.preempt(Strike("batch 0 2", (doomed,)))
    crash_at(training, SAVE_POINTS, doomed, killed)
    if training.workers == 1:
        training.crash(failpoints={0: "restore.before-read"})
    assert_goes_on(training, undisturbed(training.workers))


@pytest.mark.parametrize(
    ("killed", "place"),
    [
        pytest.param(0, "batch 2 3", id="the host of the coordination service"),
        pytest.param(1, "done 0 5", id="where metrics are read", marks=pytest.mark.chaos),
    ],
)
def test_a_worker_killed_without_notice_ends_its_peer_with_an_error_and_loses_no_checkpoint(
    killed: int, place: str, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = Training(tmp_path, 2)
    training.preempt(Strike("batch 0 2", (0,)))
    result = training.start(Strike(place, (killed,), signal="SIGKILL", settle=False))
    assert result.codes[killed] == -9
    # Told from an error of the program, and from a preemption.
    assert result.codes[1 - killed] == EXIT_WORKER_LOST
    assert "Another worker is gone, or cannot be reached" in result.outputs[1 - killed]
    assert "has failed" not in result.outputs[1 - killed]
    told = [event for events in training.events(1 - killed)[-1].values() for event in events]
    assert [event["origin"] for event in told if "origin" in event] == ["the loss of a worker"]
    assert_goes_on(training, undisturbed(2))
