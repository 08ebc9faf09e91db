"""Two and three worker processes, preempted again and again, end bit-identical to undisturbed ones.

| case | moments | who gets the signal |
|---|---|---|
| 2 workers, finite | first step; mid-epoch; last step of an epoch; mid-validation | 0; 1; all; 0 and soon 1 |
| 2 workers, repeat | mid-epoch; validation begin; epoch begin | 1 and soon 0; all; 1 |
| 3 workers, finite | first step; mid-validation; mid-epoch | all; 1 and soon 2; 0 |
| 3 workers, repeat | epoch's last step | 2 |
| 2 workers, 4 steps an execution (6 an epoch) | mid-epoch; the execution that is not full | 0; 1 |
| 2 workers, 2 steps an execution, repeat | mid-epoch | 1 |
| every case | after the last step: the run finishes | 1 |
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.training import Strike, Training, Undisturbed

REPEAT = ("--data", "repeat")
SOON = 0.02
"""Seconds between two signals in quick succession: while the first one is agreed on or saved."""

CASES: dict[str, tuple[int, tuple[str, ...], list[list[Strike]]]] = {
    "2": (
        2,
        (),
        [
            [Strike("tracing", (0,))],
            [Strike("batch 1 2", (1,))],
            [Strike("batch 1 5", (0, 1))],
            [Strike("test_batch 2 1", (0,)), Strike("test_batch 2 1", (1,), after=SOON)],
        ],
    ),
    "2 repeat": (
        2,
        REPEAT,
        [
            [Strike("batch 0 3", (1,), settle=False), Strike("batch 0 3", (0,), after=SOON)],
            [Strike("test 1", (0, 1))],
            [Strike("epoch 3", (1,))],
        ],
    ),
    "3": (
        3,
        (),
        [
            [Strike("tracing", (0, 1, 2))],
            [Strike("test_batch 1 2", (1,)), Strike("test_batch 1 2", (2,), after=SOON)],
            [Strike("batch 2 3", (0,))],
        ],
    ),
    "3 repeat": (3, REPEAT, [[Strike("done 1 5", (2,))]]),
    "2 in executions of 4": (2, ("--spe", "4"), [[Strike("batch 1 4", (0,))], [Strike("done 2 7", (1,))]]),
    "2 repeat in executions of 2": (2, (*REPEAT, "--spe", "2"), [[Strike("batch 1 2", (1,))]]),
}


@pytest.mark.parametrize("case", CASES)
def test_preempted_workers_end_as_if_nothing_had_happened(
    case: str, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    workers, args, incarnations = CASES[case]
    training = Training(tmp_path, workers, args)
    for strikes in incarnations:
        training.preempt(*strikes)
    training.finish(Strike("epoch_end 3", (1,), settle=False))
    training.assert_same(undisturbed(workers, *args))
