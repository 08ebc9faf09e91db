"""TF_CONFIG, TensorFlow's description of a cluster: of machines with known names, or of a Kubernetes JobSet.

`worker_environment` makes of it what a worker needs on every backend. A Slurm step is in `slurm`.

JobSet gives every pod a name that stays the same over restarts,
``<jobset>-<replicated job>-<job index>-<pod index>.<subdomain>``, and writes the parts into the labels of the pod.
The manifest hands them on as variables (Kubernetes' downward API); examples/kubernetes has one.
Source: github.com/kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from keras_preempt.process.environment import KERAS_ADDRESSES, KERAS_PROCESS, KERAS_PROCESSES, TF_CONFIG

DEFAULT_PORT = 2222  # The port that TensorFlow's own examples use. It has to be free on all machines.

VARIABLES = (TF_CONFIG, KERAS_ADDRESSES, KERAS_PROCESSES, KERAS_PROCESS)
"""The environment variables that describe a cluster to one of its workers, on every backend."""


def tf_config_of(addresses: Sequence[str], index: int) -> dict[str, Any]:
    """The TF_CONFIG of the worker at `addresses[index]`."""
    return {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": index}}


def training_tasks(config: Mapping[str, Any]) -> list[tuple[str, int]]:
    """The tasks of a TF_CONFIG that train, as ("worker", 1), in the order in which they are numbered."""
    return [
        (job, index) for job in ("chief", "worker") for index in range(len(config["cluster"].get(job, ())))
    ]


def worker_environment(config: Mapping[str, Any]) -> dict[str, str]:
    """The environment variables by which one worker finds the others, whichever backend its script chooses.

    ``MultiWorkerMirroredStrategy`` reads ``TF_CONFIG``. ``keras.distribution.initialize()`` reads three variables of
    Keras' own, ``KERAS_DISTRIBUTION_JOB_ADDRESSES``, ``_NUM_PROCESSES`` and ``_PROCESS_ID``; they are left out for a
    task that does not train, such as an evaluator.

    Args:
        config: A TF_CONFIG, such as `tf_config_from_jobset` returns.

    Returns:
        Values by name, for `os.environ`, to be set before the strategy is made or ``initialize`` is called.

    Raises:
        KeyError: It is not a TF_CONFIG.

    Example:
        >>> os.environ.update(worker_environment(tf_config_from_hosts(["a", "b"])))
    """
    variables = {TF_CONFIG: json.dumps(config)}
    tasks, here = training_tasks(config), (config["task"]["type"], int(config["task"]["index"]))
    if here in tasks:
        addresses = [str(config["cluster"][job][index]) for job, index in tasks]
        variables[KERAS_ADDRESSES] = ",".join(addresses)
        variables[KERAS_PROCESSES] = str(len(addresses))
        variables[KERAS_PROCESS] = str(tasks.index(here))
    return variables


def tf_config_from_hosts(
    hosts: Sequence[str], host: str | None = None, *, port: int = DEFAULT_PORT
) -> dict[str, Any]:
    """The TF_CONFIG of this machine in a cluster of machines with fixed names, one worker on each.

    Args:
        hosts: The machines by name, in the same order on all of them.
        host: This machine. None: the name that the system gives itself. A machine that knows itself by its short
            name is found in a list of full ones, and the other way round.
        port: Where the workers listen.

    Returns:
        A TF_CONFIG, of which `worker_environment` makes environment variables.

    Raises:
        ValueError: A machine is named twice, or this one is not there.

    Example:
        >>> tf_config_from_hosts(["a.internal", "b.internal"], "b")["task"]
        {'type': 'worker', 'index': 1}
    """
    here = socket.gethostname() if host is None else host
    if isinstance(hosts, str) or len(set(hosts)) != len(hosts):
        raise ValueError(f"Expected the names of machines, each once. Received: {hosts!r}.")
    found = [index for index, name in enumerate(hosts) if name == here] or [
        index for index, name in enumerate(hosts) if name.split(".")[0] == here.split(".")[0]
    ]
    if len(found) != 1:
        raise ValueError(
            f"Expected this machine, {here!r}, to be one of the workers. Received: {list(hosts)}. "
            "Give host= the name that the list has for it."
        )
    return tf_config_of([f"{name}:{port}" for name in hosts], found[0])


_NAME = "JOBSET_NAME"
_SUBDOMAIN = "JOBSET_SUBDOMAIN"
_REPLICATED_JOB = "REPLICATED_JOB_NAME"
_JOBS = "REPLICATED_JOB_REPLICAS"
_JOB = "JOB_INDEX"
_PODS_PER_JOB = "PODS_PER_JOB"
_POD = "JOB_COMPLETION_INDEX"

_WHERE = {
    _NAME: "the label jobset.sigs.k8s.io/jobset-name",
    _REPLICATED_JOB: "the label jobset.sigs.k8s.io/replicatedjob-name",
    _JOBS: "the label jobset.sigs.k8s.io/replicatedjob-replicas",
    _JOB: "the label jobset.sigs.k8s.io/job-index",
    _PODS_PER_JOB: "the parallelism of the job",
    _POD: "Kubernetes, where completionMode is Indexed",
}


def tf_config_from_jobset(
    variables: Mapping[str, str] = os.environ, *, port: int = DEFAULT_PORT
) -> dict[str, Any]:
    """The TF_CONFIG of this pod among all pods of its replicated job.

    Args:
        variables: The environment. ``JOBSET_NAME``, ``REPLICATED_JOB_NAME``, ``REPLICATED_JOB_REPLICAS`` and
            ``JOB_INDEX`` come from the labels of the pod, ``PODS_PER_JOB`` is the parallelism of the job,
            ``JOB_COMPLETION_INDEX`` is set by Kubernetes; ``JOBSET_SUBDOMAIN`` is needed only where the JobSet's
            network has a subdomain of its own.
        port: Where the workers listen.

    Returns:
        A TF_CONFIG, of which `worker_environment` makes environment variables.

    Raises:
        ValueError: A variable is missing, or is no number where one is needed, or they contradict each other.
    """

    def text(name: str) -> str:
        if not (value := variables.get(name)):
            raise ValueError(
                f"Expected {name} to be set, from {_WHERE[name]}. Received: {value!r}. "
                "Add it to the container's env; examples/kubernetes/jobset.yaml has all of them."
            )
        return value

    def number(name: str) -> int:
        value = text(name)
        if not (value.isascii() and value.isdigit()):
            raise ValueError(f"Expected {name} to be a number, from {_WHERE[name]}. Received: {value!r}.")
        return int(value)

    def index_and_count(name: str, count_name: str) -> tuple[int, int]:
        count = number(count_name)
        if count < 1:
            raise ValueError(
                f"Expected {count_name} to be 1 or more, from {_WHERE[count_name]}. Received: {count}."
            )
        index = number(name)
        if index >= count:
            raise ValueError(
                f"Expected {name} to be below {count_name}={count}. Received: {index}. "
                f"{count_name} has to be what {_WHERE[count_name]} says."
            )
        return index, count

    name, replicated_job = text(_NAME), text(_REPLICATED_JOB)
    job, jobs = index_and_count(_JOB, _JOBS)
    pod, pods = index_and_count(_POD, _PODS_PER_JOB)
    subdomain = variables.get(_SUBDOMAIN) or name
    addresses = [
        f"{name}-{replicated_job}-{each_job}-{each_pod}.{subdomain}:{port}"
        for each_job in range(jobs)
        for each_pod in range(pods)
    ]
    return tf_config_of(addresses, job * pods + pod)
