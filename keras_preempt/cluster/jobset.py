"""TensorFlow's description of the cluster that a Kubernetes JobSet is.

JobSet gives every pod a name that stays the same from restart to restart,
``<jobset>-<replicated job>-<job index>-<pod index>.<subdomain>``, and writes the parts into the labels of the pod.
The manifest hands them on as variables (Kubernetes' downward API); examples/kubernetes has one.
Source: github.com/kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from keras_preempt.cluster.tf_config import DEFAULT_PORT, tf_config_of

__all__ = ["tf_config_from_jobset"]

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
