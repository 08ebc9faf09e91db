"""Finds this process among the workers of its strategy or its cluster."""

from __future__ import annotations

import json
import os
from typing import Any

import tensorflow as tf

from keras_preempt.backend.place import NO_WORKERS, JobSource, Neighbours, Place, RemoteWorkers
from keras_preempt.backend.tensorflow import coordination
from keras_preempt.process import environment

_BY_TENSORFLOW = JobSource(
    f"{environment.TF_CONFIG} names",
    environment.TF_CONFIG,
    "make and compile it under tf.distribute.MultiWorkerMirroredStrategy",
    f"the task's index of {environment.TF_CONFIG}",
)


def place(strategy: tf.distribute.Strategy) -> Place:
    """Finds this process among the workers of its strategy. Raises ValueError if they cannot be aligned."""
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
    """Finds this process among the workers of a cluster that train together. Raises ValueError if it is none."""
    jobs = resolver.cluster_spec().as_dict() if resolver is not None else {}
    order = [(job, task) for job in ("chief", "worker") for task in range(len(jobs.get(job, ())))]
    if len(order) < 2:
        return Place(joins=True)
    here = (resolver.task_type, int(resolver.task_id or 0))
    if here not in order:
        raise ValueError(
            f"Expected this process to be one of the training workers {order}. Received: {here}. "
            "Set the task of TF_CONFIG to a 'chief' or a 'worker'."
        )
    sizes = tuple((job, len(jobs[job])) for job in ("chief", "worker") if jobs.get(job))
    return Place(order.index(here), len(order), f"/job:{here[0]}/task:{here[1]}", sizes, joins=True)


def place_of_loop(resolver: Any) -> tuple[Place, Any]:
    """See `seam.Backend.place_of_loop`. Without a resolver, the strategy is that in whose scope this is called."""
    if resolver is None:
        strategy = tf.distribute.get_strategy()
        return place(strategy), strategy
    if resolver.task_type not in ("chief", "worker") and (workers := connected()):
        return Place(workers=workers), None  # Only this process runs the loop.
    if "ps" in resolver.cluster_spec().as_dict():
        raise ValueError(
            "Expected a cluster whose workers step together. Received: one with parameter servers (the job 'ps'). "
            "Use tf.train.CheckpointManager on its coordinator."
        )
    return place_in(resolver), None


def connected() -> RemoteWorkers:
    """Returns the workers that this process was connected to by `tf.config.experimental_connect_to_cluster`."""
    return RemoteWorkers(coordination.remote_jobs(), coordination.are_gone)


def of_strategy(strategy: tf.distribute.Strategy) -> RemoteWorkers:
    """Returns the remote workers that a strategy computes on; none if it computes in this process only."""
    workers = connected()
    names = {name for name, _ in workers.jobs}
    devices = (
        [tf.DeviceSpec.from_string(device) for device in strategy.extended.worker_devices] if workers else []
    )
    return workers if any(device.job in names for device in devices) else NO_WORKERS


def in_a_cluster() -> bool:
    """Whether TF_CONFIG says that this process is one of several training workers."""
    try:
        jobs = tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec().as_dict()
    except (ValueError, TypeError, AttributeError):  # TF_CONFIG may be any text.
        return False
    return sum(len(jobs.get(job, ())) for job in ("chief", "worker")) > 1


def neighbours(strategy: Any) -> Neighbours | None:
    """Returns the cluster of TF_CONFIG, if this process is one of several training workers in it."""
    try:
        config = json.loads(os.environ.get(environment.TF_CONFIG) or "{}")
        cluster, task = dict(config["cluster"]), dict(config["task"])
        members = sum(len(cluster.get(job, ())) for job in ("chief", "worker"))
        job, index = task["type"], int(task.get("index", 0))
    except (ValueError, TypeError, KeyError):  # No cluster, or a text that only a strategy can read.
        return None
    if members < 2 or job not in ("chief", "worker") or "ps" in cluster:
        return None
    made_under = type(strategy).__name__
    # A model that is made under none has TensorFlow's default strategy, whose class is not public.
    made_under = "no strategy" if made_under.startswith("_") else made_under
    return Neighbours(
        f"{job} {index}", members, json.dumps(cluster, sort_keys=True), made_under, _BY_TENSORFLOW
    )
