"""A distributed input continues from a snapshot, at whatever place a job is preempted, and ends bit-identically.

| case | snapshots | the signal comes in |
|---|---|---|
| 2 workers, repeat | at every 2nd step | the first step; the middle of an epoch; the first step after a reshuffle |
| chaos: 2 workers, finite | at every step | the second epoch's first steps; its last step |
| MirroredStrategy, repeat | at every 3rd step | between two snapshots; the next step, before there is a new one |
| chaos: MirroredStrategy, finite, 2 steps an execution | at every execution | the second epoch |
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cluster.training import Strike, Training, Undisturbed

MIRRORED = ("--strategy", "mirrored")
REPEAT = ("--data", "repeat")

CASES: dict[str, tuple[int, tuple[str, ...], int, list[Strike]]] = {
    "2 repeat": (2, REPEAT, 2, [Strike("batch 0 1"), Strike("batch 1 4", (1,)), Strike("batch 2 0")]),
    "2": (2, (), 1, [Strike("batch 1 1"), Strike("batch 1 5", (1,))]),
    "mirrored repeat": (1, (*MIRRORED, *REPEAT), 3, [Strike("batch 2 2"), Strike("batch 2 3")]),
    "mirrored in executions of 2": (1, (*MIRRORED, "--spe", "2"), 1, [Strike("batch 1 2")]),
}
LONG = ("2", "mirrored in executions of 2")


def drawn_again(training: Training, worker: int) -> list[int]:
    """How many batches were drawn again after a snapshot, at each start but the first."""
    found = []
    for start in training.events(worker)[1:]:
        (restored,) = start["restore"]
        match = re.fullmatch(
            r"from a snapshot of \d+ KiB and (\d+) batches drawn again in .*", restored["input"]
        )
        assert match is not None, restored["input"]
        found.append(int(match[1]))
    return found


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.chaos if case in LONG else ()) for case in CASES]
)
def test_an_input_that_continues_from_a_snapshot_ends_as_if_nothing_had_happened(
    case: str, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    workers, args, every, strikes = CASES[case]
    training = Training(tmp_path, workers, (*args, "--snapshots", str(every)))
    for strike in strikes:
        training.preempt(strike)
    training.finish()
    training.assert_same(undisturbed(workers, *args))
    for worker in range(workers):
        assert len(drawn_again(training, worker)) == len(strikes)


def test_with_repeat_as_many_batches_are_drawn_again_in_a_late_epoch_as_in_an_early_one(
    tmp_path: Path,
) -> None:
    """The strategy of two logical devices is at most four batches ahead, which `prefetch` does not add to."""
    training = Training(
        tmp_path, 1, (*MIRRORED, *REPEAT, "--no-validation", "--epochs", "6", "--snapshots", "1")
    )
    training.preempt(Strike("batch 1 0"))
    training.preempt(Strike("batch 5 0"))
    early, late = drawn_again_until_preempted(training)
    assert early <= 4
    assert late <= 4


def drawn_again_until_preempted(training: Training) -> list[int]:
    """How many batches a resume from each checkpoint will draw again."""
    found = []
    for checkpoint in training.checkpoints:
        part = json.loads((training.directory / checkpoint / "w00000.part.json").read_text())
        taken = part["state"]["input"]
        batches = taken["position"]["batches"]
        found.append(batches - taken["snapshot"]["drawn"] // taken["snapshot"]["elements a batch"])
    return found


def test_a_checkpoint_without_a_snapshot_is_replayed(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """As a release before snapshots has written it."""
    training = Training(tmp_path, 1, (*MIRRORED, *REPEAT))
    training.preempt(Strike("batch 1 3"), args=("--no-snapshots",))
    training.finish()
    training.assert_same(undisturbed(1, *MIRRORED, *REPEAT))
    (restored,) = training.events(0)[1]["restore"]
    assert restored["input"].startswith("by replay of ")


def test_a_release_that_knows_no_snapshots_replays(tmp_path: Path, undisturbed: Undisturbed) -> None:
    training = Training(tmp_path, 1, (*MIRRORED, *REPEAT))
    training.preempt(Strike("batch 1 3"))
    training.finish(args=("--no-snapshots",))
    training.assert_same(undisturbed(1, *MIRRORED, *REPEAT))
    (restored,) = training.events(0)[1]["restore"]
    assert restored["input"].startswith("by replay of ")
