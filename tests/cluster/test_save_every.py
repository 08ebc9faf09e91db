"""Saves in the background: a run that is killed without notice goes on from the last one, with the same end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint.layout import SAVE_REQUEST
from tests.cli.saved_run import run
from tests.cluster.training import Strike, Training, Undisturbed


def saved_steps(training: Training) -> list[int]:
    """Steps of the checkpoints that were committed, as the committer told."""
    told = [event for kinds in training.events(0) for event in kinds.get("commit", ())]
    return [event["step"] for event in told]


def assert_cannot_save(training: Training, why: str, capsys: Any) -> None:
    """``keras-preempt save`` says why nobody can save, and leaves no request."""
    code, _, errors = run(capsys, "save", str(training.directory))
    assert (code, why in errors) == (1, True), errors
    assert not (training.directory / SAVE_REQUEST).exists()


@pytest.mark.parametrize(
    ("save_every", "steps"),
    [("4", [4, 8, 12]), pytest.param("epoch", [6, 12], marks=pytest.mark.chaos)],
)
def test_killed_without_notice_a_run_goes_on_from_its_last_save(
    save_every: str, steps: list[int], tmp_path: Path, undisturbed: Undisturbed, capsys: Any
) -> None:
    training = Training(tmp_path, args=("--save-every", save_every, "--slow", "0.05"))
    training.crash(Strike("batch 2 1", (0,), signal="SIGKILL", commits=len(steps)))
    assert saved_steps(training) == steps
    assert_cannot_save(training, "worker 0 of start 1 is gone, and reported no end", capsys)
    training.finish()
    assert_cannot_save(training, "start 2 has ended (training is over)", capsys)
    restored = training.events(0)[-1]["restore"][0]
    assert restored["checkpoint"].startswith(f"step-{steps[-1]:08d}/")
    training.assert_same_end(undisturbed(1))
    ran, expected = training.steps(0), undisturbed(1).steps(0)
    assert len(ran) - len(expected) == 1, "only the steps since the last save are run again"
    assert set(ran) == set(expected)


def test_two_workers_save_at_the_same_steps_also_around_a_preemption(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = Training(tmp_path, 2, ("--save-every", "4"))
    training.preempt(Strike("batch 1 3", (1,), commits=2))  # A notice would cancel a save in flight.
    training.crash(Strike("batch 2 4", (1,), signal="SIGKILL"))
    training.finish()
    training.assert_same_end(undisturbed(2))
    for worker in range(2):
        # Not saved again where it was restored; the last save of the killed incarnation may be cut off.
        told = [[e["step"] for e in kinds.get("commit", ())] for kinds in training.events(worker)]
        assert told[0][:2] == [4, 8]
        assert told[0][-1] == 10
        assert told[1] in ([12], [12, 16])
        assert told[2][-1] == 18


@pytest.mark.chaos
def test_time_decides_when_asked_to_and_one_worker_watches_it(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = Training(tmp_path, 2, ("--save-every", "0.3s", "--slow", "0.1"))
    training.finish()
    for worker in range(2):
        (kinds,) = training.events(worker)
        plans = [plan["reason"] for plan in kinds["plan"]]
        assert plans.count("periodic") > 1, "no save in all the time"
        assert len(kinds["commit"]) == len(plans)
    training.assert_same(undisturbed(2))
    manifests = [json.loads(path.read_text()) for path in training.directory.glob("step-*/*/MANIFEST.json")]
    assert sorted(manifest["finished"] for manifest in manifests) == [False, True]
