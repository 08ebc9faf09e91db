"""One preemption of one real job: start its workers, send SIGTERM to one at a random moment, read the times.

All times are from the same clock, since all processes run on one machine.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_preempt.cluster import LocalCluster, WorkerExit

SCRIPTS = Path(__file__).parent / "scripts"
OURS, TENSORFLOW = "preempted_fit.py", "preempted_loop.py"
OURS_ON_JAX, ORBAX = "jax_preempted_fit.py", "jax_preempted_loop.py"

EXIT_RESTART = 75
START_TIMEOUT = 120.0  # seconds until the step at which the signal is sent
END_TIMEOUT = 60.0  # seconds from the signal to the last worker's end

_FIRST_STEP, _LAST_STEP = 5, 15  # past the compilation; between them the step of the signal is drawn
_ENVIRONMENT: dict[str, str | None] = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "KERAS_BACKEND": "tensorflow",
}
ON_JAX: dict[str, str | None] = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "JAX_PLATFORMS": "cpu",  # Processes of one machine would take each other's accelerator.
    "KERAS_BACKEND": "jax",
}
"""The variables of the processes of a job on JAX."""


class PreemptionFailed(RuntimeError):
    """The job did not end like one that was preempted."""


@dataclass(frozen=True)
class Job:
    """What all runs of a comparison have in common.

    Attributes:
        step_seconds: How long each step sleeps.
        width: Units of each hidden layer; the model has 2 * width ** 2 weights and some.
        grace_seconds: From the signal until the job has to be gone; 0 to save and leave at once.
    """

    step_seconds: float = 0.05
    width: int = 512
    grace_seconds: float = 0.0


@dataclass(frozen=True)
class Preemption:
    """The times of one run, in seconds since the signal was sent.

    Attributes:
        heard: When the notified worker told of the notice; None if it tells nothing of the kind.
        aligned: When the last worker stood where it saves; of two saves, the second.
        committed: When the checkpoint was complete.
        gone: When the process of the notified worker had ended.
        all_gone: When the last process had ended.
        extra_steps: Steps that were run beyond the newest one that any worker had begun when the signal was
            sent.
        worker: The worker that got the signal.
        step: The step at which it got it, from 1.
    """

    heard: float | None
    aligned: float
    committed: float
    gone: float
    all_gone: float
    extra_steps: int
    worker: int
    step: int


class _Watch:
    """Waits for a worker's line, and keeps the last ones of each for the report of a failure."""

    def __init__(self, worker: int, line: str) -> None:
        self._worker, self._line = worker, line
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._seen = False
        self._ended = False

    def on_line(self, worker: int, line: str) -> None:
        with self._news:
            if not line.startswith("STEP "):
                self._lines.append(f"w{worker}: {line}")
            elif worker == self._worker and line == self._line:
                self._seen = True
                self._news.notify_all()

    def on_exit(self, worker: int) -> None:
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait(self, timeout: float) -> bool:
        with self._news:
            self._news.wait_for(lambda: self._seen or self._ended, timeout)
            return self._seen and not self._ended

    def failure(self, what: str) -> PreemptionFailed:
        with self._news:
            return PreemptionFailed("\n".join([what, *self._lines[-40:]]))


def preempt(script: str, workers: int, job: Job, seed: str) -> Preemption:
    """Runs the job once and preempts it.

    Args:
        script: `OURS` or `TENSORFLOW`; on JAX `OURS_ON_JAX` or `ORBAX`.
        workers: How many processes.
        job: The job.
        seed: Draws the worker, the step and the moment within the step.

    Raises:
        PreemptionFailed: It did not get to that step, or did not save and end; holds the last lines.
    """
    draw = random.Random(seed)
    worker, step = draw.randrange(workers), draw.randint(_FIRST_STEP, _LAST_STEP)
    moment = draw.random() * job.step_seconds
    environment = ON_JAX if script in (OURS_ON_JAX, ORBAX) else _ENVIRONMENT
    watch = _Watch(worker, f"STEP {step}")
    with tempfile.TemporaryDirectory() as folder:
        what = (job.step_seconds, job.width, job.grace_seconds)
        command = [sys.executable, str(SCRIPTS / script), folder, *map(str, what)]
        cluster = LocalCluster(workers, command, env=environment, log=watch.on_line, on_exit=watch.on_exit)
        with cluster:
            if not watch.wait(START_TIMEOUT):
                raise watch.failure(f"{script}: worker {worker} did not get to step {step}.")
            time.sleep(moment)  # Not to wait for anything: it is the random moment.
            sent, sent_monotonic = time.time(), time.monotonic()
            cluster.signal(worker, signal.SIGTERM)
            try:
                exits = cluster.wait(END_TIMEOUT + job.grace_seconds)
            except TimeoutError as error:
                raise watch.failure(f"{script}: after SIGTERM to worker {worker}: {error}") from error
        if any(end.code != EXIT_RESTART for end in exits):
            codes = {end.index: end.code for end in exits}
            raise watch.failure(f"{script}: after SIGTERM to worker {worker}, exit codes {codes}.")
        try:
            read = _ours if script in (OURS, OURS_ON_JAX) else _peers
            heard, aligned, committed = read(Path(folder), workers)
            extra = _extra_steps(Path(folder), workers, sent)
        except (OSError, KeyError, ValueError) as error:
            raise watch.failure(f"{script}: what it left cannot be read: {error!r}") from error
    gone, all_gone = _ends(exits, worker)
    return Preemption(
        heard=None if heard is None else heard - sent,
        aligned=aligned - sent,
        committed=committed - sent,
        gone=gone - sent_monotonic,
        all_gone=all_gone - sent_monotonic,
        extra_steps=extra,
        worker=worker,
        step=step,
    )


def _ends(exits: list[WorkerExit], worker: int) -> tuple[float, float]:
    return next(end.at for end in exits if end.index == worker), max(end.at for end in exits)


def _ours(folder: Path, workers: int) -> tuple[float | None, float, float]:
    """Reads the events: heard, the last worker's hold, the commit of the one that wrote the manifest."""
    events: list[dict[str, Any]] = []
    for path in sorted((folder / "events").glob("*.jsonl")):
        events += map(json.loads, path.read_text().splitlines())
    heard = min(event["time"] for event in events if event["event"] == "notice")
    # Of each worker, the last: with a grace period there are two.
    holds = {event["member"]: event["time"] for event in events if event["event"] == "hold"}
    committer = [event["writers"][0] for event in events if event["event"] == "plan"][-1]
    commits = {event["member"]: event["time"] for event in events if event["event"] == "commit"}
    if len(holds) != workers or len(commits) != workers:
        raise ValueError(f"Expected {workers} holds and commits. Received: {len(holds)} and {len(commits)}.")
    return heard, max(holds.values()), commits[committer]


def _peers(folder: Path, workers: int) -> tuple[float | None, float, float]:
    """Reads what the script noted around its save, in which every worker takes part."""
    journals = [_journal(folder, worker) for worker in range(workers)]
    return None, max(each["aligned"] for each in journals), max(each["saved"] for each in journals)


def _extra_steps(folder: Path, workers: int, sent: float) -> int:
    steps: list[list[float]] = [_journal(folder, worker)["steps"] for worker in range(workers)]
    in_flight = max(sum(began <= sent for began in of_worker) for of_worker in steps)
    return max(map(len, steps)) - in_flight


def _journal(folder: Path, worker: int) -> dict[str, Any]:
    journal: dict[str, Any] = json.loads((folder / f"journal-{worker}.json").read_text())
    return journal
