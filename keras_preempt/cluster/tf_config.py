"""TF_CONFIG, TensorFlow's description of a cluster: of machines with known names, a Kubernetes JobSet, a Slurm step.

JobSet gives every pod a name that stays the same over restarts,
``<jobset>-<replicated job>-<job index>-<pod index>.<subdomain>``, and writes the parts into the labels of the pod.
The manifest hands them on as variables (Kubernetes' downward API); examples/kubernetes has one.
Source: github.com/kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

DEFAULT_PORT = 2222
"""The port that TensorFlow's own examples use. It has to be free on all machines."""


def tf_config_of(addresses: Sequence[str], index: int) -> dict[str, Any]:
    """Returns the TF_CONFIG of the worker at `addresses[index]`."""
    return {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": index}}


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
        What `json.dumps` makes a TF_CONFIG of, for `os.environ` before the strategy is made.

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
        What `json.dumps` makes a TF_CONFIG of, for `os.environ` before the strategy is made.

    Raises:
        ValueError: A variable is missing, or is no number where one is needed, or they contradict each other.
    """
    name, replicated_job = _text(variables, _NAME), _text(variables, _REPLICATED_JOB)
    jobs, job = _count(variables, _JOBS), _index(variables, _JOB, _JOBS)
    pods, pod = _count(variables, _PODS_PER_JOB), _index(variables, _POD, _PODS_PER_JOB)
    subdomain = variables.get(_SUBDOMAIN) or name
    addresses = [
        f"{name}-{replicated_job}-{each_job}-{each_pod}.{subdomain}:{port}"
        for each_job in range(jobs)
        for each_pod in range(pods)
    ]
    return tf_config_of(addresses, job * pods + pod)


def _text(variables: Mapping[str, str], name: str) -> str:
    if not (value := variables.get(name)):
        raise ValueError(
            f"Expected {name} to be set, from {_WHERE[name]}. Received: {value!r}. "
            "Add it to the container's env; examples/kubernetes/jobset.yaml has all of them."
        )
    return value


def _number(variables: Mapping[str, str], name: str) -> int:
    text = _text(variables, name)
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"Expected {name} to be a number, from {_WHERE[name]}. Received: {text!r}.")
    return int(text)


def _count(variables: Mapping[str, str], name: str) -> int:
    if (value := _number(variables, name)) < 1:
        raise ValueError(f"Expected {name} to be 1 or more, from {_WHERE[name]}. Received: {value}.")
    return value


def _index(variables: Mapping[str, str], name: str, count: str) -> int:
    value, limit = _number(variables, name), _number(variables, count)
    if value >= limit:
        raise ValueError(
            f"Expected {name} to be below {count}={limit}. Received: {value}. "
            f"{count} has to be what {_WHERE[count]} says."
        )
    return value


_NEEDED = (
    "SLURM_JOB_ID",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURMD_NODENAME",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
)

# Below the ports that Linux hands out by itself (32768 and up); each job gets a block of its own, so that two jobs
# that share a node do not meet as long as they have no more tasks on it.
_FIRST_PORT, _BLOCK, _BLOCKS = 10_000, 64, 350


def tf_config_from_slurm(*, port: int | None = None) -> dict[str, Any]:
    """The TF_CONFIG of this task among all tasks of its job step, as TensorFlow's SlurmClusterResolver finds them.

    It differs from that resolver alone in three points. The resolver sorts the nodes by name as text, n10 before n9,
    where Slurm counts n9 first, and then takes a task's number for its place in that list, which gives tasks the
    addresses of others; here a task is found by its own address. It asks nvidia-smi for the number of GPUs, and
    fails on machines that have none; and it sets CUDA_VISIBLE_DEVICES, which Slurm has done already.

    Args:
        port: Where the first task of each node listens; its others follow. None: by the number of the job.

    Returns:
        What `json.dumps` makes a TF_CONFIG of, for `os.environ` before the strategy is made.

    Raises:
        ValueError: This is no task of a job step.
        RuntimeError: SlurmClusterResolver cannot make sense of the variables.
    """
    missing = [name for name in _NEEDED if not os.environ.get(name)]
    if missing:
        raise ValueError(
            "Expected to be in a task of a Slurm job step. "
            f"Received: no {', '.join(missing)}. Start the script through srun."
        )
    # Here, since the command line imports this package and does without TensorFlow.
    import tensorflow as tf

    tasks = int(os.environ["SLURM_STEP_NUM_TASKS"])
    base = _port_of(int(os.environ["SLURM_JOB_ID"])) if port is None else port
    # As many "GPUs" as tasks and one for each: the resolver cannot count with none, and the number ends up nowhere.
    resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
        port_base=base, gpus_per_node=tasks, gpus_per_task=1, auto_set_gpu=False
    )
    addresses = resolver.cluster_spec().job_tasks("worker")
    here = f"{os.environ['SLURMD_NODENAME']}:{base + int(os.environ['SLURM_LOCALID'])}"
    if here not in addresses:
        raise ValueError(
            f"Expected this task, {here}, to be one of the step's. Received: {addresses} from "
            f"SLURM_STEP_NODELIST={os.environ['SLURM_STEP_NODELIST']!r} and "
            f"SLURM_STEP_TASKS_PER_NODE={os.environ['SLURM_STEP_TASKS_PER_NODE']!r}."
        )
    return tf_config_of(addresses, addresses.index(here))


def _port_of(job: int) -> int:
    return _FIRST_PORT + job % _BLOCKS * _BLOCK
