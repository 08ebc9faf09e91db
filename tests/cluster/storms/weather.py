"""Lets a storm loose on a job until the job is finished."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from keras_preempt.process import environment
from tests.cluster.storms.job import Job, Launch, Workers
from tests.cluster.storms.plan import EVERYONE, KILL, LAUNCHER, MOMENTS, Blow, Storm

MOST_STARTS = 16
"""Starts after which a job that is not finished never will be."""

WITHIN = 240.0
"""Seconds in which a moment comes, or the job ends."""


@dataclass(frozen=True)
class Gone:
    """The end of a worker under the launcher that had begun a fit, and the kinds of events that it has told in it."""

    incarnation: int
    worker: int
    code: int
    told: frozenset[str]


@dataclass
class Start:
    """One start of the job, what hit it, and what became of it.

    Attributes:
        number: From 0.
        records: Where its workers have recorded every step.
        outputs: What each worker has written.
        said: What the launcher has said.
        codes: The status of each worker; empty under the launcher.
        status: The status of the launcher.
        unheard: Signals that came to the launcher while Python itself was starting, and did what they do to any
            program.
        gone: How the workers under the launcher have ended, as it has recorded it.
        cleaned: Workers that the harness itself has ended after another one had failed.
        struck: The blows that came, each with whether the processes were there.
        checkpoints: What was committed when it was over.
        left: Processes that were there when it was over.
        temporary: What was in the temporary directory by then.
    """

    number: int
    records: Path
    outputs: list[str] = field(default_factory=list)
    said: str = ""
    codes: dict[int, int] = field(default_factory=dict)
    status: int | None = None
    unheard: set[int] = field(default_factory=set)
    gone: list[Gone] = field(default_factory=list)
    cleaned: set[int] = field(default_factory=set)
    struck: list[tuple[Blow, bool]] = field(default_factory=list)
    checkpoints: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    temporary: list[str] = field(default_factory=list)

    def hit(self, *numbers: int) -> bool:
        """Whether one of those signals was sent to anybody."""
        return any(number in numbers for blow, came in self.struck if came for number, _ in blow.signals)


class Weather:
    """A job in an empty folder of its own, and a storm."""

    def __init__(self, folder: Path, storm: Storm) -> None:
        self.storm = storm
        self.output = folder / "output"
        self.directory = folder / "run"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.memory = folder / "memory"
        self.memory.mkdir()
        self._luck = random.Random(storm.seed)
        self.starts: list[Start] = []
        self._folder = folder
        self._seen: dict[int, int] = {}
        self._recorded: set[str] = set()  # Logs of launchers that were read already.

    def rage(self) -> None:
        """Goes through all of it, and then to the end of the training."""
        job = self._begin()
        try:
            for blow in self.storm.blows:
                if job.ended():
                    if self._settle(job):
                        return
                    job = self._begin()
                self._strike(job, blow)
            while not self._settle(job):
                assert len(self.starts) < MOST_STARTS, f"{len(self.starts)} starts, and it is not finished"
                job = self._begin()
        finally:
            job.close()

    def _begin(self) -> Job:
        start = Start(len(self.starts), self._folder / f"records-{len(self.starts)}")
        start.records.mkdir()
        self.starts.append(start)
        self._seen = {}
        env = {
            "TMPDIR": str(self.temporary),
            environment.DRILL_RECORD: str(start.records),
            "KERAS_PREEMPT_PLATFORM": "generic",
            "TORCHINDUCTOR_CACHE_DIR": str(
                self._folder / "compiled"
            ),  # Else torch makes one in TMPDIR, and leaves it.
        }
        args = [str(self.output), str(self.directory), "--marks", *self.storm.args, *self.storm.data]
        args += ["--strategy", "mwms"] if self.storm.workers > 1 else []
        args += ["--memory-every", "2", "--memory-dir", str(self.memory)] if self.storm.in_memory else []
        if self.storm.launched:
            return Launch(self.storm.workers, args, env, f"{os.getpid()}-{self._folder.name}-{start.number}")
        return Workers(self.storm.workers, args, env)

    def _strike(self, job: Job, blow: Blow) -> None:
        """Waits for the moment of a blow, and deals it out; what ends the job before that spares it."""
        watched = max(blow.target, 0)
        pattern = MOMENTS[blow.moment]
        if pattern is not None and not self._await(job, watched, pattern, blow.count):
            return
        self._wait(blow.delay, job.ended)
        came = False
        for number, gap in blow.signals:
            self._wait(gap, job.ended)
            targets = range(self.storm.workers) if blow.target == EVERYONE else [blow.target]
            sent = [job.signal(target, number) for target in targets]
            came = came or any(sent)
        self.starts[-1].struck.append((blow, came))
        self._seen = {worker: len(job.lines(worker)) for worker in range(self.storm.workers)}
        if not isinstance(job, Launch) or blow.target == LAUNCHER:
            # It ends now, unless the blow was a pause, or came before or after anybody listened.
            self._wait(1.0, job.ended)

    def _await(self, job: Job, worker: int, pattern: str, count: int) -> bool:
        limit = time.monotonic() + WITHIN
        while time.monotonic() < limit:
            lines = job.lines(worker)[self._seen.get(worker, 0) :]
            if sum(re.match(pattern, line) is not None for line in lines) > count:
                return True
            if job.ended():
                return False
            time.sleep(0.002)  # The storm does not care, and the output of a launcher has no event.
        return False

    def _settle(self, job: Job) -> bool:
        """Waits for the end of a start, and notes what it has come to; returns whether the job is finished."""
        start = self.starts[-1]
        job.wait()
        start.outputs = ["\n".join(job.lines(worker)) for worker in range(self.storm.workers)]
        start.left = job.processes()
        start.temporary = sorted(path.name for path in self.temporary.iterdir())
        found = [path.parent for path in self.directory.glob("step-*/*/MANIFEST.json")]
        start.checkpoints = sorted(str(path.relative_to(self.directory)) for path in found)
        if isinstance(job, Launch):
            start.status = job.code
            start.unheard = job.unheard
            start.said = "\n".join(job.said())
            start.gone = self._gone()
            return job.code == 0
        start.codes = {exit.index: exit.code for exit in job.exits}
        for worker in [worker for worker, code in start.codes.items() if code == -KILL]:
            if self._luck.random() < 0.5:  # It was the whole machine.
                for folder in self.memory.glob(f"*/*/w{worker:05d}"):
                    shutil.rmtree(folder)
        start.cleaned = {exit.index for exit in job.exits if exit.by_launcher}
        return set(start.codes.values()) == {0}

    def _gone(self) -> list[Gone]:
        """What the launcher of this start has recorded of the ends of its workers."""
        found = []
        for path in sorted(self.directory.glob("events/*.launcher.jsonl")):
            if path.name in self._recorded:
                continue
            self._recorded.add(path.name)
            number = path.name.partition(".")[0]
            for event in map(json.loads, path.read_text().splitlines()):
                worker = event["member"]
                told = path.with_name(f"{number}.w{worker:05d}.jsonl")
                text = told.read_text() if told.exists() else ""
                kinds = frozenset(re.findall(r'"event":"(\w+)"', text))
                found.append(Gone(int(number), worker, event["code"], kinds))
        return found

    @staticmethod
    def _wait(seconds: float, ended: Callable[[], bool]) -> None:
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and not ended():
            time.sleep(min(0.01, max(0.0, limit - time.monotonic())))


def killed(start: Start) -> bool:
    """Whether a process may have gone without a chance to tidy up."""
    return (
        start.hit(KILL)
        or bool(start.unheard or start.cleaned)
        or any(code < 0 for code in start.codes.values())
    )
