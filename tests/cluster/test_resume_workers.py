"""Two and three worker processes, preempted again and again, end bit-identical to undisturbed ones.

| case | the signal comes in | to |
|---|---|---|
| chaos: 2 workers, finite | the first step; mid-epoch; an epoch's last step; mid-validation | 0; 1; all; 0 and soon 1 |
| chaos: 2 workers, repeat | mid-epoch; validation begin | 1 and soon 0; all |
| chaos: 3 workers, finite | the first step; mid-validation | all; 1 and soon 2 |
| 3 workers, repeat | an epoch's last step (ended) | 0 |
| chaos: 2 workers, 4 steps an execution (6 an epoch) | the execution that is not full | 1 |
| chaos: 2 workers, 2 steps an execution, repeat | mid-epoch, its last step | 1; all |
| chaos: 2 workers, real races: no mark waits | random steps | random workers |
| every case | after the last step: the run finishes | 1 |
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.cluster.training import PREEMPTED, Strike, Training, Undisturbed

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
        ],
    ),
    "3": (
        3,
        (),
        [
            [Strike("tracing", (0, 1, 2))],
            [Strike("test_batch 1 2", (1,)), Strike("test_batch 1 2", (2,), after=SOON)],
        ],
    ),
    "3 repeat": (3, REPEAT, [[Strike("done 1 5", (0,))]]),
    "2 in executions of 4": (2, ("--spe", "4"), [[Strike("batch 1 4", (1,))]]),
    "2 repeat in executions of 2": (
        2,
        (*REPEAT, "--spe", "2"),
        [[Strike("batch 1 2", (1,))], [Strike("done 2 5", (0, 1))]],
    ),
}
LONG = ("2", "2 repeat", "3", "2 in executions of 4", "2 repeat in executions of 2")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.chaos if case in LONG else ()) for case in CASES]
)
def test_preempted_workers_end_as_if_nothing_had_happened(
    case: str, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    workers, args, incarnations = CASES[case]
    training = Training(tmp_path, workers, args)
    for strikes in incarnations:
        training.preempt(*strikes)
    training.finish(Strike("epoch_end 3", (1,), settle=False))
    training.assert_same(undisturbed(workers, *args))


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("workers", [2, 3])
def test_workers_preempted_at_random_end_as_if_nothing_had_happened(
    workers: int, seed: int, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    rng = random.Random(seed)
    training = Training(tmp_path, workers)
    for step in sorted(rng.sample(range(24), 5)):
        # From a thread, some time after the step has begun: in it, in the boundary, in the agreement.
        at, delay = f"batch {step // 6} {step % 6}", rng.uniform(0, 0.02)
        doomed = rng.sample(range(workers), rng.randint(1, workers))
        strikes = [Strike(at, (worker,), after=delay + rng.uniform(0, 0.01)) for worker in doomed]
        if training.start(*strikes).codes == [0] * workers:
            break  # The last steps took less time than the signal.
        training.results[-1].assert_codes(PREEMPTED)
    else:
        training.finish()
    training.assert_same(undisturbed(workers))
