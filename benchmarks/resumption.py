"""One preemption of a real job and the start after it, with the times that the job has recorded."""

from __future__ import annotations

import itertools
import json
import re
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_preempt.cluster import LocalCluster
from keras_preempt.process.exit_codes import EXIT_RESTART

SCRIPT = Path(__file__).parent / "scripts" / "resumed_fit.py"
STATE, REPLAY, ARRAYS = "state", "replay", "arrays"
PARTS = ("import", "cluster", "build", "restore", "replay", "compile", "first step")

TIMEOUT = 600.0  # seconds for each of the two starts
_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "KERAS_BACKEND": "tensorflow",
    "KERAS_PREEMPT_PLATFORM": "generic",  # No metadata server is asked.
}
ONE, MIRRORED, WORKERS = "1 device", "Mirrored(2)", "2 workers"
_TOLD = {
    STATE: r"iterator's saved state|from a snapshot",
    REPLAY: r"by replay",
    ARRAYS: r"order of its epoch",
}


class ResumptionFailed(RuntimeError):
    """The job was not preempted, did not continue, or continued its input in another way than was asked for."""


@dataclass(frozen=True)
class Job:
    """What is preempted.

    Attributes:
        workers: Processes; 1 for one device without a strategy.
        way: How the input gets back to where it was: `STATE` or `REPLAY`; `ARRAYS` for 3 epochs of arrays.
        batches: Batches that are trained on before the preemption: of the epoch, or with `ARRAYS` of all three.
        after: Steps after the resume, of which all but the first tell what a step costs.
        mirrored: Whether one process trains on two logical devices under MirroredStrategy.
        endless: Whether a small model is trained, so that it comes far in short time; a dataset is repeated for that.
    """

    workers: int
    way: str
    batches: int
    after: int
    mirrored: bool = False
    endless: bool = False

    @property
    def place(self) -> str:
        """What it trains on."""
        return MIRRORED if self.mirrored else WORKERS if self.workers > 1 else ONE


@dataclass(frozen=True)
class Resumption:
    """Where the time of one start went, of the worker that took longest; all in seconds.

    Attributes:
        parts: By the names in `PARTS`; "replay" is all that it takes to bring the input back, in either way.
        whole: From the start of the process to the end of its first new step.
        step: A later step, the median.
        batches: Those of the epoch that were trained on before, and are drawn again in a replay; a signal can be heard
            one later than it is sent.
        pipeline: How long the first start took to make an iterator of the input, without drawing from it.
    """

    parts: dict[str, float]
    whole: float
    step: float
    batches: int
    pipeline: float = 0.0


def resume(job: Job) -> Resumption:
    """Runs the job, preempts it, and starts it again.

    Raises:
        ResumptionFailed: It did not go that way; holds the last lines.
    """
    with tempfile.TemporaryDirectory() as folder:
        _run(job, folder, "first", EXIT_RESTART)
        _run(job, folder, "again", 0)
        journals = [
            json.loads(Path(folder, f"journal-{worker}.json").read_text()) for worker in range(job.workers)
        ]
    for journal in journals:
        if not re.search(_TOLD[job.way], journal["how"]):
            raise ResumptionFailed(
                f"Expected the input to continue by its {_TOLD[job.way]}. Received: {journal['how']}."
            )
    return max(map(split, journals), key=lambda resumption: resumption.whole)


def _run(job: Job, folder: str, which: str, expected: int) -> None:
    lines: list[str] = []
    command = [sys.executable, str(SCRIPT), folder, job.way, str(job.batches), str(job.after), which]
    command += [*(["--mirrored"] if job.mirrored else []), *(["--endless"] if job.endless else [])]
    cluster = LocalCluster(
        job.workers, command, env=_ENVIRONMENT, log=lambda worker, line: lines.append(f"w{worker}: {line}")
    )
    with cluster:
        try:
            codes = {end.index: end.code for end in cluster.wait(TIMEOUT)}
        except TimeoutError as error:
            raise ResumptionFailed("\n".join([f"{job}, {which} start: {error}", *lines[-40:]])) from error
    if set(codes.values()) != {expected}:
        raise ResumptionFailed("\n".join([f"{job}, {which} start: exit codes {codes}", *lines[-40:]]))


def split(journal: dict[str, Any]) -> Resumption:
    """Splits the time of one start by what the process has noted; the parts sum up to the whole."""
    steps: list[float] = journal["steps"]
    step = statistics.median(later - earlier for earlier, later in itertools.pairwise(steps))
    in_callback = journal["restored"] - journal["fit_began"]
    parts = {
        "import": journal["imported"] - journal["started"],
        "cluster": journal["connected"] - journal["imported"],
        "build": journal["fit_began"] - journal["connected"] + journal["built_in_fit"],
        "restore": in_callback - journal["built_in_fit"] - journal["input_restored_in"],
        "replay": journal["input_restored_in"],
        "compile": steps[0] - journal["restored"] - step,
        "first step": step,
    }
    whole = steps[0] - journal["started"]
    return Resumption(parts, whole, step, journal["batches"], journal.get("pipeline", 0.0))
