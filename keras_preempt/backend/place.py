"""Which process of a job this one is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

PREEMPTION_NOTICE_KEY = "TF_DEFAULT_PREEMPTION_NOTICE_KEY"
"""The key under which TensorFlow's own SIGTERM handler and its TPU runtime leave "/job:worker/task:N"."""

LOOK_SECONDS = 1.0
"""Seconds between two checks whether the workers are gone; each is one request to the coordination service."""

Jobs = tuple[tuple[str, int], ...]
"""Names of jobs, each with the number of its tasks."""


@dataclass(frozen=True)
class RemoteWorkers:
    """The workers on which a coordinating process runs its training, as with TPUStrategy."""

    jobs: Jobs = ()  # Their jobs; empty if this process runs everything itself.
    # Whether their tasks are gone, or at least the one that hosts the coordination service.
    are_gone: Callable[[Jobs], bool] = field(default=lambda jobs: not jobs, compare=False, repr=False)

    def __bool__(self) -> bool:
        return bool(self.jobs)

    def __len__(self) -> int:
        return sum(tasks for _, tasks in self.jobs)

    def wait_until_gone(self, timeout: float | None = None) -> bool:
        """Waits until `are_gone`; returns whether they are. The timeout is in seconds, None for no limit.

        Without the worker that hosts the coordination service, training cannot continue on the others.
        """
        if not self.jobs:
            return True
        limit = None if timeout is None else time.monotonic() + timeout
        while not self.are_gone(self.jobs):
            left = LOOK_SECONDS if limit is None else limit - time.monotonic()
            if left <= 0:
                return False
            # Polled, since the process that would report it, the host of the service, is the one that goes.
            time.sleep(min(left, LOOK_SECONDS))
        return True


NO_WORKERS = RemoteWorkers()
"""For a process that runs everything itself."""


@dataclass(frozen=True)
class Place:
    """A process in its job."""

    member: int = 0  # Its index; the chief, or else worker 0, is 0 and hosts the coordination service.
    members: int = 1
    task: str = ""  # Such as "/job:worker/task:1"; empty if there is only one process.
    jobs: Jobs = ()  # The processes are their tasks, in their order.
    workers: RemoteWorkers = NO_WORKERS  # Those that it coordinates and computes on, as with TPUStrategy.
    joins: bool = False
    """Whether its strategy makes several workers train together, even if there is only one."""


@dataclass(frozen=True)
class Job:
    """Processes that the backend's runtime has connected, whether or not they train one model."""

    process: int  # The index of this one.
    processes: int  # How many there are.
    name: str  # Of this start of the job; the same in all of its processes.


@dataclass(frozen=True)
class JobSource:
    """How a process knows of the other workers of its job, in words."""

    by: str  # What names them, with its verb, such as "TF_CONFIG names".
    source: str  # The same as a noun.
    to_join: str  # How a script makes the workers train one model.
    number: str  # What differs between the workers.


@dataclass(frozen=True)
class Neighbours:
    """The job of a worker that trains a model of its own."""

    task: str  # Which worker this is, such as "worker 1".
    members: int  # How many training workers there are.
    job: str  # Identifies the job.
    strategy: str  # What the model was made under, in words.
    source: JobSource
