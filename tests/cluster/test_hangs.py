"""A job that hangs is found, shown and started again, and ends as if nothing had happened; one that is slow is not."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.report import events
from tests.cluster.forked import QUIET_CPU
from tests.cluster.harness import keras_preempt

SCRIPT = Path(__file__).parent / "scripts" / "hanging.py"
STEP = 3.0  # seconds that a step may take here under `--hang auto`
SLOW = 4.0
FOUND = "[keras-preempt] hang: "
BOUND = 300.0  # seconds for a whole job, on a busy machine


@dataclass
class Job:
    output: str
    directory: Path

    @property
    def ends(self) -> set[str]:
        """The weights of each worker at the end."""
        return set(re.findall(r"^\[w\d\] ENDED (\w+)$", self.output, re.MULTILINE))

    def starts(self) -> list[str]:
        """The output of each start."""
        return re.split(
            r"^\[keras-preempt\] incarnation .*: starting again$", self.output, flags=re.MULTILINE
        )

    def hangs(self) -> list[dict[str, object]]:
        return [each for each in events.read(open_store(self.directory)) if each["event"] == "hang"]


def launch(folder: Path, ways: str, *options: str, slow: float = SLOW, step: float = STEP) -> Job:
    directory = folder / "run"
    ended = subprocess.run(
        [*keras_preempt(), "run", *options, "--", sys.executable, str(SCRIPT), str(directory), ways],
        env={**os.environ, **QUIET_CPU, "HANG_STEP_SECONDS": str(step), "SLOW": str(slow)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=BOUND + 10 * slow,
    )
    assert ended.returncode == 0, ended.stdout
    return Job(ended.stdout, directory)


HANG = ("--hang", "auto", "--failure-grace", "1")


def test_one_process_that_hangs_in_each_way_ends_as_if_it_had_not(tmp_path: Path) -> None:
    undisturbed = launch(tmp_path / "undisturbed", "none")
    job = launch(tmp_path, "loop,data,stop,slow", *HANG)
    assert job.ends == undisturbed.ends
    assert len(job.ends) == 1
    loop, data, stop, slow = job.starts()
    assert "no progress of w0 within 3 s (auto: the slowest one took" in loop
    assert "w0 is in a training step, at step 5" in loop
    # It holds the GIL, so that nothing written in Python could have shown this.
    assert re.search(r"^\[w0\] Current thread .*\n.* in match$\n.*hanging.py.* in loop$", loop, re.MULTILINE)
    assert "its main thread is running" in loop
    assert re.search(r"hanging.py.* in batches$", data, re.MULTILINE)
    assert "its main thread is stopped by a signal (SIGSTOP)" in stop
    assert "no stacks of w0: a process that is stopped cannot write them" in stop
    # Continued, it has answered the SIGTERM.
    assert "Preempted: exiting with status 75." in stop
    assert FOUND not in slow
    assert slow.count("SLOW") == 3
    assert "finished: incarnations=4 preemptions=0 failures=0 hangs=3" in slow
    hangs = job.hangs()
    assert [(each["step"], each["phase"]) for each in hangs] == [
        (5, "a training step"),
        (10, "a training step"),
        (13, "a training step"),
    ]
    assert all(STEP < float(str(each["seconds"])) < BOUND for each in hangs)
    told = subprocess.run(
        [sys.executable, "-m", "keras_preempt", "report", str(job.directory)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert told.count("hung: w0 no progress for 3 s in a training step") == 3, told
    # Where a killed worker stood is known, so its lost steps are too.
    assert re.search(r"^steps: \d+ run, 24 kept, \d lost$", told, re.MULTILINE), told


def test_the_worker_that_the_others_wait_for_is_named(tmp_path: Path) -> None:
    undisturbed = launch(tmp_path / "undisturbed", "none", "--workers", "2")
    job = launch(tmp_path, "wait", "--workers", "2", *HANG)
    assert job.ends == undisturbed.ends
    assert len(job.ends) == 1
    hung, ended = job.starts()
    assert "hang: no progress of w1 within 3 s" in hung
    assert "hang: w0 is in a training step, at step 6" in hung
    assert "hang: w1 is in a training step, at step 5" in hung
    assert re.search(r"^\[w1\] .*hanging.py.* in wait$", hung, re.MULTILINE)
    assert re.search(r"^\[w0\] Current thread .*\n.* in quick_execute$", hung, re.MULTILINE)
    assert "hangs=1" in ended
    assert [each["member"] for each in job.hangs()] == [1]


@pytest.mark.chaos
@pytest.mark.parametrize("ways", ["stop", "loop"])
def test_two_workers_of_which_one_hangs_end_as_if_it_had_not(ways: str, tmp_path: Path) -> None:
    undisturbed = launch(tmp_path / "undisturbed", "none", "--workers", "2")
    job = launch(tmp_path, ways, "--workers", "2", *HANG)
    assert job.ends == undisturbed.ends
    assert "hang: no progress of w1 within 3 s" in job.output


@pytest.mark.chaos
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_first_step_of_two_minutes_is_no_hang(workers: str, tmp_path: Path) -> None:
    """And a validation that takes many hundred times as long as a step."""
    job = launch(tmp_path, "slow", "--workers", workers, "--hang", "auto", slow=120.0, step=300.0)
    assert FOUND not in job.output
    assert job.output.count("SLOW") >= 2


def test_a_job_that_hangs_can_be_ended(tmp_path: Path) -> None:
    """Ctrl-C while its workers are being ended is no reason to start them again."""
    command = [*keras_preempt(), "run", "--hang", "auto", "--failure-grace", "60", "--"]
    with subprocess.Popen(
        [*command, sys.executable, str(SCRIPT), str(tmp_path / "run"), "wait"],
        env={**os.environ, **QUIET_CPU, "HANG_STEP_SECONDS": str(STEP)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "the stacks of all threads" in line:
                    break
            limit = time.monotonic() + BOUND
            while process.poll() is None and time.monotonic() < limit:
                process.send_signal(signal.SIGINT)  # Two at once are one.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
            rest = process.stdout.read()
        finally:
            process.kill()
    assert process.returncode == 130, rest
    assert "stopped by SIGINT: incarnations=1" in rest
