"""Which worker of a job this process is, by the variables that the cluster has set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from keras_preempt.process.environment import TF_CONFIG

__all__ = ["Job", "job_of"]


@dataclass(frozen=True)
class Job:
    """A worker among the workers of its job.

    Attributes:
        index: Its number, from 0.
        workers: How many there are.
        addresses: Where each listens, by number; none if the variables do not say.
        said_by: The variables that say so.
    """

    index: int
    workers: int
    addresses: tuple[str, ...]
    said_by: str


def job_of(variables: Mapping[str, str]) -> Job | None:
    """Returns the job that this process belongs to; None if no variable speaks of more than one worker.

    Raises:
        ValueError: TF_CONFIG is not what TensorFlow can read, or this process is no worker in it.
    """
    if text := variables.get(TF_CONFIG):
        return _of_tf_config(text)
    tasks, number = variables.get("SLURM_STEP_NUM_TASKS", ""), variables.get("SLURM_PROCID", "")
    if tasks.isdecimal() and number.isdecimal() and int(tasks) > 1:
        return Job(int(number), int(tasks), (), "SLURM_PROCID")
    return None


def _of_tf_config(text: str) -> Job | None:
    try:
        config = json.loads(text)
        cluster = config.get("cluster") or {}
        order = [(job, task) for job in ("chief", "worker") for task in range(len(cluster.get(job, ())))]
        if len(order) < 2:
            return None
        here = (config["task"]["type"], int(config["task"]["index"]))
        addresses = tuple(str(cluster[job][task]) for job, task in order)
        return Job(order.index(here), len(order), addresses, TF_CONFIG)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"Expected {TF_CONFIG} to be JSON with a cluster and this process' task in it. Received: {text!r} "
            f"({error}). See docs/clusters.md."
        ) from None
