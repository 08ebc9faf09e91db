"""Jobs whose time is over: saved before that, at one step, and continued as if nothing had happened."""

from __future__ import annotations

import os
import random
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.process import environment
from tests.cluster.forked import QUIET_CPU
from tests.cluster.harness import RunningCluster, keras_preempt, python
from tests.cluster.jax_training import JaxTraining
from tests.cluster.noticed_fit import NoticedFit, Outcome
from tests.cluster.training import PREEMPTED, SCRIPT, Training, Undisturbed

APART = 2.0
"""Seconds between the starts of the processes of two workers."""

FIRST_AND_LAST_SAVE = [("preempted", True), ("deadline", False)]
"""The plans of a time limit, each with its reason and whether training goes on: one round for all workers."""


def assert_left_in_time(told: list[dict[str, list[dict[str, Any]]]]) -> list[float]:
    """Asserts of the events of each worker that all have saved before the earliest deadline; returns all deadlines."""
    notices = [notice for each in told for notice in each["notice"]]
    assert {notice["source"] for notice in notices} == {"time limit"}
    deadlines = [notice["deadline"] for notice in notices]
    for each in told:
        assert [(plan["reason"], plan["goes_on"]) for plan in each["plan"]] == FIRST_AND_LAST_SAVE
        (end,) = each["exit"]
        assert end["saved"] == told[0]["exit"][0]["saved"] is not None
        assert end["time"] < min(deadlines)
    return deadlines


def leave_in_time(folder: Path, workers: int, limit: float, *more: str) -> tuple[Training, float]:
    """Runs a job, with more arguments of its script, until its time is over.

    The process of worker 0 begins last, so that its own end is the later one. A machine may be so busy that the fit
    begins when half of the time is over; then there is another job, with twice the time.

    Returns:
        The job, and how many seconds before the earliest end the last process was gone.
    """
    job = Training(folder / f"{limit:g}", workers)
    job.output.parent.mkdir()
    # All steps together take longer than the limit.
    args = [*job.command, f"--time-limit={limit:g}s", f"--slow={limit / 12}", *more]
    wait = f"[ $KERAS_PREEMPT_WORKER -ge {workers - 1} ] || sleep {APART}; "
    command = ["sh", "-c", f"{wait}exec {shlex.join([*python(), str(SCRIPT), *args])}"]
    with RunningCluster(command, workers, {"TRAIN_STRIKES": "[]"}) as running:
        job.results.append(running.wait().assert_codes(PREEMPTED))
        gone = max(end.at for end in running.cluster.exits) + time.time() - time.monotonic()
    told = [job.events(worker)[0] for worker in range(workers)]
    start = told[0]["start"][0]
    if told[0]["ready"][0]["time"] > start["started_at"] + limit / 2:
        return leave_in_time(folder, workers, 2 * limit, *more)
    assert len(job.steps(0)) > 0
    deadlines = assert_left_in_time(told)
    assert workers == 1 or deadlines[0] - deadlines[1] > APART / 2
    return job, min(deadlines) - gone


@pytest.mark.parametrize("workers", [1, 2])
def test_all_leave_before_the_earliest_end_and_continue(
    workers: int, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    expected = undisturbed(workers)  # First, so that processes are forked at once from here on.
    job, _ = leave_in_time(tmp_path, workers, 8.0 if workers == 1 else 14.0)
    job.finish_as(expected)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(8))
def test_no_process_outlives_its_limit(seed: int, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """With steps of all lengths. Shows how much of the limit is left when the last process is gone."""
    undisturbed(1 + seed % 2)
    choose = random.Random(seed)
    seconds = 10 ** choose.uniform(-2, 0.3)
    _, left = leave_in_time(tmp_path, 1 + seed % 2, 20.0, f"--slow={seconds}", "--epochs=500")
    print(f"{1 + seed % 2} workers, steps of {seconds:.2f} s: gone {left:.2f} s before the end")
    assert left > 0


@pytest.mark.chaos
def test_a_job_under_the_launcher_leaves_before_its_limit_and_is_not_started_again(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    job = Training(tmp_path, 2)
    train = [sys.executable, str(SCRIPT), *job.command, "--slow=3"]
    launcher = [*keras_preempt(), "run", "--workers", "2", "--time-limit", "60s", "--", *train]
    began = time.monotonic()
    done = subprocess.run(
        launcher, capture_output=True, text=True, timeout=240, env={**os.environ, **QUIET_CPU}
    )
    assert done.returncode == PREEMPTED, done.stdout + done.stderr
    assert time.monotonic() - began < 60
    assert "out of time, saved at step " in done.stdout
    assert "incarnations=1 preemptions=1" in done.stdout
    assert_left_in_time([job.events(worker)[0] for worker in range(2)])
    job.finish()
    job.assert_same_end(undisturbed(2))


@pytest.mark.chaos
def test_two_processes_on_jax_leave_in_time(tmp_path: Path) -> None:
    undisturbed = JaxTraining(tmp_path / "undisturbed", 2, "dp")
    undisturbed.finish()
    job = JaxTraining(tmp_path / "job", 2, "dp", env={"SECONDS_A_STEP": "2"})
    job.env[environment.END_TIME] = str(time.time() + 30)
    job.start().assert_codes(PREEMPTED)
    job.env.clear()
    job.finish_as(undisturbed)


def test_a_time_that_was_over_before_fit_began_loses_nothing(
    job: NoticedFit,
    undisturbed_fit: Outcome,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No moment is left to be done by, so that nothing says that it is too late, and no storage gives up."""
    monkeypatch.setenv(environment.END_TIME, str(time.time() - 5))
    outcome = job.fit(on_begin=lambda: job.await_told("notice"), termination={"exit_fn": None})
    assert (outcome.ended, outcome.steps) == ("SystemExit 75", [])
    assert "too late" not in caplog.text
    monkeypatch.delenv(environment.END_TIME)
    job.fit()
    job.assert_nothing_lost(undisturbed_fit)
