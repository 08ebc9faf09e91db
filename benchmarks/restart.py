"""What a restart costs: from the end of the last process to the end of the first new step, with and without standbys.

A job is preempted some times under `keras-preempt run`, with ``--standby`` and without it, in turns. Its script notes
when it comes how far:

- start: from the end of the last process to the first line of the script;
- import: Keras, TensorFlow or JAX, and this package;
- build: the workers meet, the model is made;
- resume: `fit` begins, the workers agree on the checkpoint, read and restore it;
- step: the first new step, with its trace and compilation.

The drill of `make demo` says what its preemptions cost in all, with and without standbys.

Beside it what cannot be had for less without a standby: the same script in plain Keras from its start to its first
step, the imports alone, and an empty process.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from figures import Aims, conditions, table, tell

from keras_preempt.cluster import RestartPolicy, Supervisor

SCRIPT = Path(__file__).parent / "scripts" / "restart_job.py"
PARTS = {"start": "script", "import": "imported", "build": "built", "resume": "training", "step": "step"}
EXAMPLE = Path(__file__).parents[1] / "examples" / "digits.py"
AIM, SECONDS = 0.35, 2.0

_TIMEOUT = 240.0  # seconds for one start, and until its standbys wait
_SETTLED = 3.0  # Seconds of training before a job without standbys is preempted.
_ENVIRONMENT = {
    # Compiled modules are kept, as an installer keeps them; None removes a variable.
    "PYTHONDONTWRITEBYTECODE": None,
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "JAX_PLATFORMS": "cpu",
    "KERAS_PREEMPT_PLATFORM": "generic",  # No metadata server is asked.
}


class RestartFailed(RuntimeError):
    """The job was not preempted, or did not go on."""


@dataclass(frozen=True)
class Job:
    """What is restarted."""

    backend: str
    size: str
    workers: int

    def __str__(self) -> str:
        where = "one device" if self.workers == 1 else f"{self.workers} workers"
        return f"{self.backend}, {self.size} model, {where}"


@dataclass(frozen=True)
class Restart:
    """Seconds of one restart, by the worker that was last: `parts` sum up to `whole`."""

    parts: dict[str, float]

    @property
    def whole(self) -> float:
        return sum(self.parts.values())


def environment(backend: str) -> dict[str, str | None]:
    return {**_ENVIRONMENT, "KERAS_BACKEND": backend}


def restart(job: Job, standby: bool, restarts: int) -> list[Restart]:
    """Trains, preempts the job some times, and returns what each restart took.

    Raises RestartFailed, with the last lines, if that is not what happens.
    """
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        supervisor = Supervisor(
            job.workers,
            [sys.executable, str(SCRIPT), name, job.size, str(restarts + 1)],
            policy=RestartPolicy(max_restarts_without_progress=restarts),
            say=lines.append,
            log=lambda index, line: lines.append(f"w{index}: {line}"),
            environment=lambda number: environment(job.backend),
            standby=standby,
        )
        over = threading.Event()
        preempting = threading.Thread(
            target=_preempt, args=(supervisor, folder, job.workers, restarts, standby, over)
        )
        preempting.start()
        try:
            report = supervisor.run()
        finally:
            over.set()
            preempting.join()
        if report.exit_code != 0 or len(report.incarnations) != restarts + 1:
            raise RestartFailed("\n".join([f"{job}: {report.summary}", *lines[-40:]]))
        found = []
        for before, after in zip(report.incarnations, report.incarnations[1:], strict=False):
            ended = max(exit.at for exit in before.exits)
            marks = [
                json.loads((folder / f"{after.number}-{worker}.json").read_text())
                for worker in range(job.workers)
            ]
            found.append(_split(ended, max(marks, key=lambda each: each["step"])))
        return found


def _preempt(
    supervisor: Supervisor, folder: Path, workers: int, restarts: int, standby: bool, over: threading.Event
) -> None:
    """Sends the notices: each when all workers train, and all standbys wait if there are any."""
    for number in range(restarts):
        deadline = time.monotonic() + _TIMEOUT
        while not all((folder / f"{number}-{worker}.json").exists() for worker in range(workers)):
            if over.wait(0.1) or time.monotonic() > deadline + _TIMEOUT:
                break
        settled = time.monotonic() + _SETTLED
        while time.monotonic() < settled or (standby and supervisor.standbys < workers):
            if over.wait(0.1):
                return
            if time.monotonic() > deadline:
                supervisor.send(0, signal.SIGKILL)  # The job fails, and what it said is shown.
                return
        supervisor.send(0, signal.SIGTERM)


def _split(ended: float, marks: dict[str, float]) -> Restart:
    parts, since = {}, ended
    for part, mark in PARTS.items():
        parts[part], since = marks[mark] - since, marks[mark]
    return Restart(parts)


def plain(job: Job) -> float:
    """Returns how long the script takes in plain Keras, from the start of its process to its first step."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        _run([str(SCRIPT), folder, job.size, "0"], job.backend)
        marks: dict[str, float] = json.loads(Path(folder, "0-0.json").read_text())
        return marks["step"] - began


def process(job: Job, program: str) -> float:
    """Returns how long a process takes that runs a program."""
    began = time.monotonic()
    _run(["-c", program], job.backend)
    return time.monotonic() - began


def _run(arguments: Sequence[str], backend: str) -> str:
    """Runs Python; returns what it printed, or raises RestartFailed with its last lines."""
    variables = {**os.environ, **environment(backend)}
    found = {name: value for name, value in variables.items() if value is not None}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=found)
    if done.returncode != 0:
        raise RestartFailed("\n".join(done.stderr.splitlines()[-40:]))
    return done.stdout


IMPORTS = {
    "tensorflow": "import keras, tensorflow, keras_preempt.callback",
    "jax": "import keras, jax, keras_preempt.callback",
}


def compare(job: Job, restarts: int, rounds: int, aims: Aims) -> str:
    """Measures one job in turns; returns a table, and judges it."""
    found: dict[bool, list[Restart]] = {False: [], True: []}
    floors: dict[str, list[float]] = {"plain Keras": [], "imports alone": [], "an empty process": []}
    for _ in range(rounds):
        for standby in found:
            found[standby] += restart(job, standby, restarts)
        if job.workers == 1:
            floors["plain Keras"].append(plain(job))
        floors["imports alone"].append(process(job, IMPORTS[job.backend]))
        floors["an empty process"].append(process(job, "pass"))
    rows = []
    whole = {}
    for standby, runs in found.items():
        run = sorted(runs, key=lambda each: each.whole)[len(runs) // 2]
        whole[standby] = run.whole
        cells = [f"{run.parts[part]:.2f}" for part in PARTS]
        rows.append(["run --standby" if standby else "run", *cells, f"{run.whole:.2f}"])
    for name, times in floors.items():
        if times:
            rows.append([name, *[""] * len(PARTS), f"{statistics.median(times):.2f}"])
    ratio = whole[True] / whole[False]
    tell(f"restart with a standby, {job}", "without one", ratio, better="less")
    if job.size == "small" and job.workers <= 2:
        aims.check(f"restart with a standby over one without, {job}", ratio, "at most", AIM)
        if job.backend == "tensorflow":
            # The aim is for a machine on which the imports take 3.4 s.
            scaled = whole[True] * 3.4 / statistics.median(floors["imports alone"])
            aims.check(
                f"restart with a standby, were the imports 3.4 s, {job}", scaled, "at most", SECONDS, " s"
            )
    if job.size == "large":
        run = sorted(found[True], key=lambda each: each.whole)[len(found[True]) // 2]
        own = run.parts["build"] + run.parts["resume"] + run.parts["step"]
        aims.check(
            f"restart with a standby over its own build, read and compile, {job}",
            run.whole / own,
            "at most",
            1.2,
        )
    return f"{job}\n\n" + table(["seconds, of the median restart", *PARTS, "whole"], rows)


def compare_drills(rounds: int, aims: Aims) -> str:
    """Drills the example of `make demo` in turns; returns a table, and judges it."""
    lost: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for standby, found in lost.items():
            found.append(drill(standby))
    medians = {standby: statistics.median(found) for standby, found in lost.items()}
    ratio = medians[True] / medians[False]
    tell("seconds lost in `make demo`, with standbys", "without", ratio, better="less")
    aims.check("seconds lost in the drill with standbys over without", ratio, "at most", 0.5)
    rows = [
        ["drill --standby" if standby else "drill", f"{median:.1f}"] for standby, median in medians.items()
    ]
    return "the drill of make demo\n\n" + table(["seconds lost in two preemptions", "median"], rows)


def drill(standby: bool) -> float:
    """Returns how many seconds longer the preempted run took than the undisturbed one."""
    options = ["--workers", "2", "--preempt", "2", "--seed", "1", *["--standby"] * standby, "--json"]
    with tempfile.TemporaryDirectory() as folder:
        script = [sys.executable, str(EXAMPLE), folder]
        told = _run(["-m", "keras_preempt", "drill", *options, "--", *script], "tensorflow")
    found: float = json.loads(told)["seconds_lost"]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--backends", nargs="+", choices=[*IMPORTS], default=[*IMPORTS])
    parser.add_argument("--sizes", nargs="+", choices=["small", "large"], default=["small", "large"])
    parser.add_argument(
        "--workers", nargs="+", type=int, default=[1, 2, 4], help="4 only with the small model"
    )
    parser.add_argument("--restarts", type=int, default=3, help="in each run")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--drills", type=int, default=2, help="each with standbys and without; 4 minutes each"
    )
    parser.add_argument("--quick", action="store_true", help="one restart of one small job")
    options = parser.parse_args(arguments)
    if options.quick:
        options.sizes, options.workers, options.restarts, options.rounds = ["small"], [1], 1, 1
        options.drills = 0
    print(f"{conditions('keras', *options.backends, 'numpy')}.\n", flush=True)
    aims = Aims(apply=not options.quick)
    jobs = [
        Job(backend, size, workers)
        for backend in options.backends
        for size in options.sizes
        for workers in options.workers
        if size == "small" or workers == 1
    ]
    try:
        for job in jobs:
            print(compare(job, options.restarts, options.rounds, aims), end="\n\n", flush=True)
        if options.drills:
            print(compare_drills(options.drills, aims), flush=True)
    except RestartFailed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    return aims.report()


if __name__ == "__main__":
    sys.exit(main())
