"""Writers that die during the save at a notice: whoever is left writes in their place, and exits with 75.

| who dies | who has the weights left | what it knows that by | test |
|---|---|---|---|
| the only writer, no deadline known | the worker under notice, worker 0 | TensorFlow's heartbeat | ..._in_its_place |
| the only writer, which is worker 0 | the worker under notice | the service, at once | ..._in_its_place |
| the only writer | the worker under notice | its own deadline, earlier | ..._before_the_loss_is_known |
| one of two writers | the other one, and who is under notice | TensorFlow's heartbeat | ..._another_survivor_... |
| the committer, when all has been written | the worker under notice commits | the service | ..._only_commits_... |
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from keras_preempt.checkpoint.failpoints import VARIABLE
from keras_preempt.training.save.saver import COMMIT_PATIENCE
from tests.cluster.harness import ClusterResult, describe
from tests.cluster.training import PREEMPTED, Strike, Training

KILLED = -9
GRACE = 3.0
HEARTBEAT = 10.0
"""Seconds after which TensorFlow tells of a death: who has written by then did not know it from there."""


def lose(
    training: Training, doomed: int, dies: int, point: str = "save.before-parts", args: Sequence[str] = ()
) -> ClusterResult:
    """Runs a start in which one worker gets a notice, and another dies at that point of the save."""
    armed = {dies: {VARIABLE: f"{point}=kill"}}
    result = training.start(Strike("batch 1 2", (doomed,)), per_worker_env=armed, args=args)
    result.assert_codes(*[KILLED if worker == dies else PREEMPTED for worker in range(training.workers)])
    return result


def goes_on(training: Training, inexact: set[int]) -> None:
    """The next start goes on from the checkpoint, and those whose own part is missing say so."""
    (saved,) = training.checkpoints
    result = training.finish()
    for worker in range(training.workers):
        assert training.events(worker)[-1]["restore"][0]["checkpoint"] == saved
        told = f"NOT exact: worker {worker}" in result.outputs[worker]
        assert told == (worker in inexact), describe(result.outputs)


@pytest.mark.chaos
@pytest.mark.parametrize("doomed", [0, 1])
def test_a_worker_under_notice_whose_writer_dies_writes_in_its_place(doomed: int, tmp_path: Path) -> None:
    training = Training(tmp_path, 2)
    result = lose(training, doomed, 1 - doomed)
    assert f"is written by worker {doomed} instead" in result.outputs[doomed]
    (commit,) = training.events(doomed)[-1]["commit"]
    assert commit["missing"] == [1 - doomed]
    waited = commit["time"] - training.events(doomed)[-1]["notice"][0]["received_at"]
    assert waited < COMMIT_PATIENCE, "it was not known to be gone, but only late"
    # Nothing is left of the attempt that failed.
    assert len(list(training.directory.glob("step-*/*"))) == 1
    goes_on(training, {1 - doomed})


@pytest.mark.chaos
def test_a_worker_under_notice_with_a_deadline_writes_before_the_loss_is_known(tmp_path: Path) -> None:
    training = Training(tmp_path, 2)
    # Too short to train on, so that there is one save, and far shorter than the heartbeat may take.
    result = lose(training, doomed=0, dies=1, args=["--grace", str(GRACE)])
    events = training.events(0)[-1]
    assert [plan["goes_on"] for plan in events["plan"]] == [False]
    (commit,) = events["commit"]
    assert commit["missing"] == [1]
    assert commit["time"] - events["notice"][0]["received_at"] < HEARTBEAT, describe(result.outputs)
    goes_on(training, {1})


def test_another_survivor_takes_the_part_over_and_the_worker_under_notice_adds_its_own(
    tmp_path: Path,
) -> None:
    training = Training(tmp_path, 3)
    result = lose(training, doomed=2, dies=1)
    assert "is written by worker 0 instead" in result.outputs[0]
    assert training.events(0)[-1]["commit"][0]["missing"] == [1]
    goes_on(training, {1})


@pytest.mark.chaos
def test_a_worker_under_notice_only_commits_where_the_manifest_alone_is_missing(tmp_path: Path) -> None:
    training = Training(tmp_path, 2)
    result = lose(training, doomed=1, dies=0, point="save.before-manifest")
    assert "Worker 0 does not commit" in result.outputs[1]
    assert "write the checkpoint" not in result.outputs[1]
    assert training.events(1)[-1]["commit"][0]["missing"] == []
    goes_on(training, set())
