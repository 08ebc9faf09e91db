"""Starts, ends and restarts worker processes on this machine; tells each worker of a cluster about the others."""

from __future__ import annotations

from keras_preempt.cluster.hangs import Hang, WorkerPosition
from keras_preempt.cluster.local import LocalCluster, WorkerExit, default_prefix
from keras_preempt.cluster.outcome import (
    Incarnation,
    Outcome,
    RestartPolicy,
    SupervisorReport,
    Verdict,
    exit_status,
    judge,
)
from keras_preempt.cluster.slurm import tf_config_from_slurm
from keras_preempt.cluster.status import WorkerStatus, read_statuses
from keras_preempt.cluster.supervisor import Supervisor
from keras_preempt.cluster.tf_config import tf_config_from_hosts, tf_config_from_jobset, worker_environment

__all__ = [
    "Hang",
    "Incarnation",
    "LocalCluster",
    "Outcome",
    "RestartPolicy",
    "Supervisor",
    "SupervisorReport",
    "Verdict",
    "WorkerExit",
    "WorkerPosition",
    "WorkerStatus",
    "default_prefix",
    "exit_status",
    "judge",
    "read_statuses",
    "tf_config_from_hosts",
    "tf_config_from_jobset",
    "tf_config_from_slurm",
    "worker_environment",
]
