"""The workers that a coordinating process runs its training on, as one does with TPUStrategy."""

from __future__ import annotations

import time
from dataclasses import dataclass

import tensorflow as tf

from keras_preempt.backend.tensorflow import internals
from keras_preempt.notices import Notice
from keras_preempt.notices.coordination_key import task_named_by

LOOK_SECONDS = 1.0
"""Between two looks at whether the workers are gone; each is one request to the coordination service."""


@dataclass(frozen=True)
class RemoteWorkers:
    """Processes that this one is connected to.

    Attributes:
        jobs: The names of their jobs, each with its number of tasks; empty if this process runs everything itself.
    """

    jobs: tuple[tuple[str, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.jobs)

    def __len__(self) -> int:
        return sum(tasks for _, tasks in self.jobs)

    def announcement(self, notice: Notice, left: str) -> str:
        """What a notice to one of them, or to their coordinator, means, in words.

        Args:
            notice: The notice.
            left: How much time is left, such as " in 30 s".
        """
        task = task_named_by(notice)
        who = f"the coordinator of {len(self)} remote worker(s)" if task is None else f"remote worker {task}"
        return (
            f"{notice.reason}: {who} is about to be ended{left}. The coordinator saves when the execution in flight "
            "is over."
        )

    def wait_until_gone(self, timeout: float | None = None) -> bool:
        """Waits until the workers are gone, or at least the one that hosts the coordination service.

        With it goes what the others knew of each other: none of them can be trained on after that.

        Args:
            timeout: In seconds; None waits for as long as it takes.

        Returns:
            Whether they are gone.
        """
        if not self.jobs:
            return True
        keys = internals.CoordinationKeys()
        limit = None if timeout is None else time.monotonic() + timeout
        while not keys.are_gone(self.jobs):
            left = LOOK_SECONDS if limit is None else limit - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, LOOK_SECONDS))  # Nobody tells: who hosts the service is who goes.
        return True


NO_WORKERS = RemoteWorkers()
"""Of a process that runs everything itself."""


def connected() -> RemoteWorkers:
    """The workers that this process was connected to by `tf.config.experimental_connect_to_cluster`."""
    return RemoteWorkers(internals.remote_jobs())


def of_strategy(strategy: tf.distribute.Strategy) -> RemoteWorkers:
    """The workers that a strategy of this process computes on; none if it computes in this process alone."""
    workers = connected()
    names = {name for name, _ in workers.jobs}
    devices = (
        [tf.DeviceSpec.from_string(device) for device in strategy.extended.worker_devices] if workers else []
    )
    return workers if any(device.job in names for device in devices) else NO_WORKERS
