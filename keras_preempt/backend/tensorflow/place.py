"""Which worker this process is, by the strategy that the model trains under."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_preempt.backend.tensorflow.remote_workers import RemoteWorkers, of_strategy

_NONE = RemoteWorkers()


@dataclass(frozen=True)
class Place:
    """A process in its job.

    Attributes:
        member: Its index, from 0; the chief, or else worker 0, is 0 and hosts the coordination service.
        members: The number of processes.
        task: What TensorFlow calls it, such as "/job:worker/task:1"; empty for one process.
        jobs: The jobs that the processes are the tasks of, in their order, each with its number of tasks.
        workers: The remote workers that it computes on; none unless it coordinates some, as with TPUStrategy.
    """

    member: int = 0
    members: int = 1
    task: str = ""
    jobs: tuple[tuple[str, int], ...] = ()
    workers: RemoteWorkers = _NONE


def place(strategy: tf.distribute.Strategy) -> Place:
    """Finds this process among the workers of its strategy.

    Raises:
        ValueError: The strategy cannot be aligned.
    """
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        raise ValueError(
            "Expected a strategy whose workers step together: MultiWorkerMirroredStrategy, TPUStrategy, "
            "MirroredStrategy or one device. Received: ParameterServerStrategy, whose workers have no common "
            "step to save at. Use tf.train.CheckpointManager on its coordinator."
        )
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return Place(workers=of_strategy(strategy))
    return place_in(strategy.cluster_resolver)


def place_in(resolver: Any) -> Place:
    """Finds this process among the workers that step together in the cluster of a resolver; None for no cluster.

    Raises:
        ValueError: It is none of them.
    """
    jobs = resolver.cluster_spec().as_dict() if resolver is not None else {}
    order = [(job, task) for job in ("chief", "worker") for task in range(len(jobs.get(job, ())))]
    if len(order) < 2:
        return Place()
    here = (resolver.task_type, int(resolver.task_id or 0))
    if here not in order:
        raise ValueError(
            f"Expected this process to be one of the training workers {order}. Received: {here}. "
            "Set the task of TF_CONFIG to a 'chief' or a 'worker'."
        )
    sizes = tuple((job, len(jobs[job])) for job in ("chief", "worker") if jobs.get(job))
    return Place(order.index(here), len(order), f"/job:{here[0]}/task:{here[1]}", sizes)
