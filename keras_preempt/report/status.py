"""The small files that a worker writes for the launcher that started it."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from keras_preempt.process import environment, this_process

logger = logging.getLogger("keras_preempt")


def fit_file(worker: int) -> str:
    """The file in which a worker names the fit that it has begun."""
    return f"fit-{worker}.json"


def imports_file(worker: int) -> str:
    """The file that says what a worker's script has imported when its training begins."""
    return f"imports-{worker}.json"


CLOUD_FILE = "cloud.json"
"""The file with what metadata servers have answered, for the next start."""


def memory_file(worker: int) -> str:
    """The file in which a worker names the newest step that is in the memory of the machines."""
    return f"memory-{worker}.json"


def process_file(worker: int) -> str:
    """The file that names the process of a worker that listens for notices."""
    return f"process-{worker}.json"


def listens(member: int) -> None:
    """Tells the launcher that this process has to get the signals of this worker."""
    leave_file(process_file(_worker(member)), this_process.name())


def leave_file(name: str, value: Mapping[str, object]) -> None:
    """Writes a file for the launcher, if there is one."""
    folder = os.environ.get(environment.STATUS_DIR)
    if not folder:
        return
    target = Path(folder) / name
    partial = target.with_suffix(f".{os.getpid()}")
    try:
        partial.write_text(json.dumps(value))
        partial.replace(target)
    except OSError as error:
        logger.warning("The status file %s could not be written: %s", target, error)


class Steps(Protocol):
    """Counts training steps: those done before this process began, and by it."""

    @property
    def steps_at_start(self) -> int: ...

    @property
    def steps_run(self) -> int: ...


class Status:
    def __init__(self) -> None:
        self.finished = False  # whether training is
        self.saved = False  # whether the checkpoint of the end is committed
        self.committed: str | None = None  # the folder of that checkpoint
        self.exit_code: int | None = None  # of a preemption
        self.notices: list[float] = []  # when they came
        self.out_of_time = False  # whether the time of the whole job is over
        self.aligned_at: float | None = None  # when this worker reached the agreed boundary
        self.committed_at: float | None = None
        self.last_saved = 0  # the step of the last checkpoint that this worker knows of, of any start
        self._directory = ""
        self._seconds: dict[str, float] = {"import and build": 0.0}
        self._training_since: float | None = None

    def spent(self, what: str, seconds: float) -> None:
        """Adds seconds to a phase, such as "save"."""
        self._seconds[what] = self._seconds.get(what, 0.0) + seconds

    def began_training(self) -> None:
        """The first step is next."""
        leave_file(imports_file(_worker(0)), this_process.imports_told())
        self._training_since = time.time()
        spent = sum(self._seconds.values())
        self._seconds["import and build"] = max(0.0, time.time() - this_process.started_at() - spent)

    def begin(self, member: int, incarnation: int, directory: str) -> None:
        """Tells the launcher which fit has begun, in case this process is killed."""
        self._directory = directory
        leave_file(fit_file(_worker(member)), {"directory": directory, "incarnation": incarnation})

    def kept_in_memory(self, member: int, step: int) -> None:
        """Tells the launcher from which step a restart continues, in case this process is killed."""
        leave_file(memory_file(_worker(member)), {"step": step})

    def write(self, member: int, incarnation: int, steps: Steps) -> None:
        """Writes the file for the launcher, if there is one; `incarnation` is 0 where starts are not counted."""
        timing = dict(self._seconds)
        if self._training_since is not None:
            whole = time.time() - self._training_since
            timing["train"] = max(0.0, whole - sum(timing.get(k, 0.0) for k in ("hold", "save", "exit")))
        status = {
            "directory": self._directory,
            "step": steps.steps_at_start + steps.steps_run,
            "steps_run": steps.steps_run,
            "saved": self.saved,
            "committed": self.committed,
            "finished": self.finished,
            "last_saved": self.last_saved,
            "incarnation": incarnation,
            "exit_code": self.exit_code,
            "notice_at": min(self.notices, default=None),
            "out_of_time": self.out_of_time,
            "aligned_at": self.aligned_at,
            "committed_at": self.committed_at,
            "timing": timing,
        }
        leave_file(f"worker-{_worker(member)}.json", status)


def _worker(member: int) -> int:
    """The number by which the launcher knows a worker that is this member of its job."""
    return int(os.environ.get(environment.WORKER) or member)
