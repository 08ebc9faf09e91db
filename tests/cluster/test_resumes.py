"""Jobs that are preempted again and again, or started again after their end, end bit-identical to undisturbed ones.

| chaos, but for `IN_MAKE_TEST` | the signal comes in | to |
|---|---|---|
| every kind of process, every data | every moment of `MOMENTS` | |
| 1 to 3 workers, every data | the cases of `CASES` | one, two at once, one and soon another one |
| every case | after the last step: the run finishes | the last worker |

Real races, in which no mark waits: test_storms.py. How a run ends, and what starting it again does, is below `ENDS`.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import pytest

from keras_preempt.checkpoint.layout import step_of
from keras_preempt.process.environment import DRILL
from tests.cluster.harness import run_cluster, start_cluster
from tests.cluster.training import PREEMPTED, SCRIPT, Strike, Training, Undisturbed

REPEAT, UNKNOWN, MIRRORED = ("--data", "repeat"), ("--data", "unknown"), ("--strategy", "mirrored")
SOON = 0.02
"""Seconds between two signals in quick succession: while the first one is agreed on or saved."""


def each(*moments: str) -> list[list[Strike]]:
    """One start for each moment."""
    return [[Strike(moment)] for moment in moments]


def soon(moment: str, first: int, second: int, settle: bool = True) -> list[Strike]:
    return [Strike(moment, (first,), settle=settle), Strike(moment, (second,), after=SOON)]


CASES: dict[str, tuple[int, tuple[str, ...], list[list[Strike]]]] = {
    "1": (1, (), each("batch 1 5", "test 2")),
    "1 in executions of 4, of 6": (1, ("--spe", "4"), each("batch 1 4")),
    "mirrored repeat": (1, (*MIRRORED, *REPEAT), each("batch 0 5")),
    "2": (
        2,
        (),
        [
            [Strike("tracing", (0,))],
            [Strike("batch 1 2", (1,))],
            [Strike("batch 1 5", (0, 1))],
            soon("test_batch 2 1", 0, 1),
        ],
    ),
    "2 repeat": (2, REPEAT, [soon("batch 0 3", 1, 0, settle=False), [Strike("test 1", (0, 1))]]),
    "3": (3, (), [[Strike("tracing", (0, 1, 2))], soon("test_batch 1 2", 1, 2)]),
    "3 repeat": (3, REPEAT, each("done 1 5")),
    "2 in executions of 4, of 6": (2, ("--spe", "4"), [[Strike("batch 1 4", (1,))]]),
    "2 repeat in executions of 2": (
        2,
        (*REPEAT, "--spe", "2"),
        [[Strike("batch 1 2", (1,))], [Strike("done 2 5", (0, 1))]],
    ),
}
IN_MAKE_TEST = ("1",)
MOMENTS = [
    "tracing",
    "batch 0 3",
    "batch 0 5",
    "done 1 1",
    "done 1 5",
    "test 1",
    "test_batch 1 2",
    "test_end 1",
]
MOMENTS += ["epoch_end 1", "epoch 2", "batch 2 0", "batch 2 5", "test_batch 2 0"]
KINDS = {"one": (), "one executions of 2": ("--spe", "2"), "mirrored": MIRRORED}
INPUTS = {"finite": (), "repeat": REPEAT, "unknown": UNKNOWN}


def disturb(training: Training, starts: list[list[Strike]]) -> Training:
    for strikes in starts:
        training.preempt(*strikes)
    training.finish(Strike("epoch_end 2", (training.workers - 1,), settle=False))
    return training


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in IN_MAKE_TEST else pytest.mark.chaos) for case in CASES]
)
def test_preempted_workers_end_as_if_nothing_had_happened(
    case: str, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    workers, args, starts = CASES[case]
    disturb(Training(tmp_path, workers, args), starts).assert_same(undisturbed(workers, *args))


@pytest.mark.chaos
@pytest.mark.parametrize("data", INPUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_process_preempted_at_every_moment_ends_as_if_nothing_had_happened(
    kind: str, data: str, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    args = (*KINDS[kind], *INPUTS[data])
    if (kind, data) == ("mirrored", "unknown"):
        # The one that is not exact at the very end of an epoch: it says so.
        assert "NOT exact after a preemption" in Training(tmp_path, args=args).finish().outputs[0]
        return
    moments = MOMENTS
    if "--spe" in args:  # It begins with an even batch, ends with an odd one.
        moments = [m for m in moments if m not in ("batch 0 3", "batch 0 5", "test_end 1", "batch 2 5")]
    disturb(Training(tmp_path, args=args), each(*moments)).assert_same(undisturbed(1, *args))


def test_the_callback_changes_no_bit_of_a_training(tmp_path: Path, undisturbed: Undisturbed) -> None:
    plain = Training(tmp_path, args=["--plain"])
    plain.finish_as(undisturbed(1))
    assert not plain.directory.exists()


ENDS = pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.chaos)])


@pytest.mark.chaos
@pytest.mark.parametrize("workers", [1, 2])
def test_early_stopping_stops_where_it_would_have(
    workers: int, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = Training(tmp_path, workers, ["--stop-early"])
    training.preempt(Strike("test_batch 0 2", (workers - 1,)))
    expected = undisturbed(workers, "--stop-early")
    assert max(int(step.split()[1]) for step in expected.steps(0)) < 3, "it has to stop before the last epoch"
    training.finish_as(expected)
    training.finish_as(expected)  # It stopped: there is nothing left to do, not even with epochs left.


@ENDS
def test_a_finished_run_started_again_returns_its_full_history_at_once(
    workers: int, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    finished = undisturbed(workers)
    again = Training(tmp_path, workers)
    shutil.copytree(finished.directory, again.directory)
    again.finish()
    assert again.steps(0) == []
    again.assert_same_end(finished)


@ENDS
def test_a_notice_in_the_last_step_lets_the_run_finish_and_more_epochs_go_on(
    workers: int, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = Training(tmp_path, workers, ["--no-validation"])
    training.finish(Strike("done 1 5", tuple(range(workers))), args=["--epochs", "2"])
    assert all("finish" in training.events(worker)[0] for worker in range(workers))
    training.finish_as(undisturbed(workers, "--no-validation"))


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.chaos), 2])
def test_the_status_of_a_preempted_process_outlives_further_signals(tmp_path: Path, workers: int) -> None:
    """For instance from a scheduler that repeats itself."""
    command = Training(tmp_path, workers, ("--slow", "0.05")).command
    with start_cluster(SCRIPT, workers, args=command) as running:
        running.wait_for_line(0, "^AT batch 0 1")
        running.signal(0, signal.SIGTERM)
        running.wait_for_line(0, "Preempted: exiting with status 75")
        limit = time.monotonic() + 60
        while any(running.signal(worker, signal.SIGTERM) for worker in range(workers)):
            assert time.monotonic() < limit
            time.sleep(0.005)  # As many as find it: at whatever its process does by then.
        running.wait(60).assert_codes(75)


RESUMED_SCRIPT = SCRIPT.with_name("resumed.py")
NOTICE = json.dumps({"member": 0, "step": 8})
"""The first start gets a notice there; in the second one the last worker kills itself after the save of step 12."""


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.chaos)])
def test_a_callback_knows_from_where_and_why_the_same_on_all_workers(workers: int, tmp_path: Path) -> None:
    args = [str(tmp_path / "told"), str(tmp_path / "run")]
    run_cluster(RESUMED_SCRIPT, workers, args=args, env={DRILL: NOTICE}).assert_codes(PREEMPTED)
    saved = max((tmp_path / "run").glob("step-*/*/MANIFEST.json"))
    checkpoint = str(saved.parent.relative_to(tmp_path / "run"))
    step = step_of(checkpoint)
    assert step == 8 or workers > 1, "the next one, if another worker has begun it when the notice comes"
    assert (
        run_cluster(RESUMED_SCRIPT, workers, args=args, env={"KILL_AFTER": "12"}).codes[-1] == -signal.SIGKILL
    )
    for _ in range(2):  # The second time, there is nothing left to train.
        run_cluster(RESUMED_SCRIPT, workers, args=args).assert_ok()
    for worker in range(workers):
        told = [json.loads(line) for line in (tmp_path / f"told.{worker}").read_text().splitlines()]
        begun = [["made", None], ["before", None]]  # Listed before the callback: called before they agree.
        killed, finished = [12, 2, "periodic"], [18, 3, "finished"]
        assert [[when, resumed and resumed[:3]] for when, resumed in told] == [
            *begun,
            ["after", None],
            *begun,
            ["after", [step, 1, "preempted"]],
            *begun,
            ["after", killed],
            ["over", killed],
            *begun,
            ["after", finished],
            ["over", finished],
        ]
        assert told[5][1][3] == checkpoint
