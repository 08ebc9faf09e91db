"""What a worker leaves for the launcher that started it: one small file when its fit ends."""

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


def fit_file(member: int) -> str:
    """Returns the name of the file in which a worker tells its launcher which fit it has begun."""
    return f"fit-{member}.json"


def process_file(member: int) -> str:
    """Returns the name of the file in which the process of a worker that listens for notices names itself."""
    return f"process-{member}.json"


def listens(member: int) -> None:
    """Tells the launcher that it is this process that has to get the signals of this worker."""
    leave(process_file(member), this_process.name())


def leave(name: str, value: Mapping[str, object]) -> None:
    """Writes a file for the launcher, or nothing if no launcher has asked for it."""
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
    """How far training has come."""

    @property
    def steps_at_start(self) -> int:
        """Steps that were done before this process began."""
        ...

    @property
    def steps_run(self) -> int:
        """Steps that it has done."""
        ...


class Status:
    """How a fit of this worker went.

    Attributes:
        finished: Whether training is over.
        saved: Whether the checkpoint of the end is committed.
        committed: Its folder.
        exit_code: The exit status of a preemption.
        notices: When notices came, in seconds since 1970.
        aligned_at: When this worker stood at the agreed boundary.
        committed_at: When the checkpoint was committed.
        last_saved: The step of the last checkpoint that this worker knows of, also one of an earlier start; 0 for none.
    """

    def __init__(self) -> None:
        self.finished = False
        self.saved = False
        self.committed: str | None = None
        self.exit_code: int | None = None
        self.notices: list[float] = []
        self.aligned_at: float | None = None
        self.committed_at: float | None = None
        self.last_saved = 0
        self._directory = ""
        self._seconds: dict[str, float] = {"import and build": 0.0}
        self._training_since: float | None = None

    def spent(self, what: str, seconds: float) -> None:
        """Adds to the account of where time went."""
        self._seconds[what] = self._seconds.get(what, 0.0) + seconds

    def began_training(self) -> None:
        """The first step is next."""
        self._training_since = time.time()
        spent = sum(self._seconds.values())
        self._seconds["import and build"] = max(0.0, time.time() - this_process.started_at() - spent)

    def begin(self, member: int, incarnation: int, directory: str) -> None:
        """Tells the launcher which fit has begun, also for the case that this process is killed."""
        self._directory = directory
        leave(fit_file(member), {"directory": directory, "incarnation": incarnation})

    def write(self, member: int, incarnation: int, steps: Steps) -> None:
        """Leaves the file where the launcher asked for it, or nothing if no launcher did.

        Args:
            member: The number of this worker.
            incarnation: The number of this start; 0 where starts are not counted.
            steps: How far training has come.
        """
        if not os.environ.get(environment.STATUS_DIR):
            return
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
            "aligned_at": self.aligned_at,
            "committed_at": self.committed_at,
            "timing": timing,
        }
        leave(f"worker-{member}.json", status)
