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
    """The workers on which a coordinating process runs its training, as with TPUStrategy.

    Attributes:
        jobs: Their jobs; empty if this process runs everything itself.
        are_gone: Returns whether the tasks of these jobs are gone, or at least the one that hosts the coordination
            service.
    """

    jobs: Jobs = ()
    are_gone: Callable[[Jobs], bool] = field(default=lambda jobs: not jobs, compare=False, repr=False)

    def __bool__(self) -> bool:
        return bool(self.jobs)

    def __len__(self) -> int:
        return sum(tasks for _, tasks in self.jobs)

    def wait_until_gone(self, timeout: float | None = None) -> bool:
        """Waits until the workers are gone, or at least the one that hosts the coordination service.

        With that one goes what the others knew of each other: none of them can be trained on after that.

        Args:
            timeout: In seconds; None for no limit.

        Returns:
            Whether they are gone.
        """
        if not self.jobs:
            return True
        limit = None if timeout is None else time.monotonic() + timeout
        while not self.are_gone(self.jobs):
            left = LOOK_SECONDS if limit is None else limit - time.monotonic()
            if left <= 0:
                return False
            # Nothing reports it: the process that would, the host of the service, is the one that goes.
            time.sleep(min(left, LOOK_SECONDS))
        return True


NO_WORKERS = RemoteWorkers()
"""Those of a process that runs everything itself."""


@dataclass(frozen=True)
class Place:
    """A process in its job.

    Attributes:
        member: Its index, from 0; the chief, or else worker 0, is 0 and hosts the coordination service.
        members: The number of processes.
        task: The name of its task, such as "/job:worker/task:1"; empty for one process.
        jobs: The jobs that the processes are the tasks of, in their order, each with its number of tasks.
        workers: The remote workers that it computes on; none unless it coordinates some, as with TPUStrategy.
        joins: Whether its strategy makes several workers train together, also if there is only one.
    """

    member: int = 0
    members: int = 1
    task: str = ""
    jobs: Jobs = ()
    workers: RemoteWorkers = NO_WORKERS
    joins: bool = False


@dataclass(frozen=True)
class Job:
    """Processes that the backend's runtime has connected, whether or not they train one model.

    Attributes:
        process: The index of this one.
        processes: How many there are.
        name: Tells this start of the job from others; the same in all of its processes.
    """

    process: int
    processes: int
    name: str


@dataclass(frozen=True)
class JobSource:
    """How a process knows of the other workers of its job.

    Attributes:
        by: Who says that there are others, with its verb.
        source: The same as a noun.
        to_join: How a script has the workers train one model.
        number: What is different in each worker.
    """

    by: str
    source: str
    to_join: str
    number: str


@dataclass(frozen=True)
class Neighbours:
    """The job of a worker that trains a model of its own.

    Attributes:
        task: Which worker this is, such as "worker 1".
        members: How many training workers there are.
        job: Tells this job from others.
        strategy: What the model was made under, in words.
        source: How this worker knows of the others.
    """

    task: str
    members: int
    job: str
    strategy: str
    source: JobSource
