"""A distributed input continues from a snapshot, at whatever place a job is preempted, and ends bit-identically."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cluster.training import Strike, Training, Undisturbed

MIRRORED = ("--strategy", "mirrored")
REPEAT = ("--data", "repeat")
SNAPSHOT = r"from a snapshot of \d+ KiB, (\d+ batch(es)? drawn again in .*|no batch drawn again)"


def continued(training: Training, worker: int) -> list[str]:
    """How each start but the first continued the input."""
    return [start["restore"][0]["input"] for start in training.events(worker)[1:]]


@pytest.mark.parametrize(
    ("workers", "args", "every", "strikes"),
    [
        pytest.param(2, REPEAT, 2, [Strike("batch 2 0", (1,))], id="2 repeat"),
        *(
            pytest.param(*case, id=name, marks=pytest.mark.chaos)
            for name, case in {
                "2 repeat, twice": (2, REPEAT, 2, [Strike("batch 0 1"), Strike("batch 1 4", (1,))]),
                "2": (2, (), 1, [Strike("batch 1 1"), Strike("batch 1 5", (1,))]),
                "mirrored repeat": (1, MIRRORED + REPEAT, 3, [Strike("batch 2 2"), Strike("batch 2 3")]),
                "mirrored in executions of 2": (1, (*MIRRORED, "--spe", "2"), 1, [Strike("batch 1 2")]),
            }.items()
        ),
    ],
)
def test_an_input_that_continues_from_a_snapshot_ends_as_if_nothing_had_happened(
    workers: int,
    args: tuple[str, ...],
    every: int,
    strikes: list[Strike],
    tmp_path: Path,
    undisturbed: Undisturbed,
) -> None:
    training = Training(tmp_path, workers, (*args, "--snapshots", str(every)))
    for strike in strikes:
        training.preempt(strike)
    training.finish_as(undisturbed(workers, *args))
    for worker in range(workers):
        told = continued(training, worker)
        assert len(told) == len(strikes)
        assert all(re.fullmatch(SNAPSHOT, each) for each in told), told


def test_a_checkpoint_without_a_snapshot_and_a_release_that_knows_none_replay(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """The first start is one of a release before snapshots, and so is the last."""
    training = Training(tmp_path, 1, (*MIRRORED, *REPEAT))
    training.preempt(Strike("batch 1 3"), args=("--no-snapshots",))
    training.preempt(Strike("batch 2 2"), args=("--snapshots", "1"))
    # From a snapshot a resume would draw few batches again, in whatever epoch it is: the strategy of two logical
    # devices is at most four ahead, which `prefetch` does not add to.
    part = json.loads((training.directory / training.checkpoints[-1] / "w00000.part.json").read_text())
    position, snapshot = part["state"]["input"]["position"], part["state"]["input"]["snapshot"]
    assert position["batches"] - snapshot["drawn"] // snapshot["elements a batch"] <= 4
    training.finish_as(undisturbed(1, *MIRRORED, *REPEAT), args=("--no-snapshots",))
    told = continued(training, 0)
    assert [each.startswith("by replay of ") for each in told] == [True, True], told
