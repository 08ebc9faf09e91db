"""TensorFlow's description of the cluster that a Slurm job step is."""

from __future__ import annotations

import os
from typing import Any

from keras_preempt.cluster.tf_config import tf_config_of

__all__ = ["tf_config_from_slurm"]

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
