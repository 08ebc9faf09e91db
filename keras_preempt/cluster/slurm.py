"""TF_CONFIG of a task in a Slurm job step, from the variables that Slurm sets for it (srun(1), OUTPUT ENVIRONMENT).

TensorFlow's SlurmClusterResolver is not used: it needs TensorFlow, which a job on JAX does without. It also sorts nodes
by name as text, n10 before n9, where Slurm counts n9 first, and takes a task's number for its place in that list,
which gives tasks the addresses of others. And it asks nvidia-smi for GPUs and sets CUDA_VISIBLE_DEVICES, which Slurm
has done already.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from typing import Any

from keras_preempt.cluster.tf_config import tf_config_of

_NEEDED = (
    "SLURM_JOB_ID",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURMD_NODENAME",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
)

# Below the ports that Linux hands out by itself (32768 and up). Each job gets a block of its own, so that two jobs on
# one node do not collide as long as they have no more tasks on it than a block has ports.
_FIRST_PORT, _BLOCK, _BLOCKS = 10_000, 64, 350

_ENTRY = re.compile(r"(?:[^,\[\]\s]|\[[^\[\]]+\])+")  # A comma in brackets does not end it.
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def tf_config_from_slurm(*, port: int | None = None) -> dict[str, Any]:
    """The TF_CONFIG of this task among all tasks of its job step. Needs no TensorFlow.

    The tasks are numbered node by node, in the order of Slurm's list, and each finds itself by its own address.
    That is Slurm's own numbering (SLURM_PROCID) where tasks are distributed block by block.

    Args:
        port: Where the first task of each node listens; its others follow. None: by the number of the job.

    Returns:
        A TF_CONFIG, of which `worker_environment` makes environment variables.

    Raises:
        ValueError: This is no task of a job step, or its variables contradict each other.
    """
    missing = [name for name in _NEEDED if not os.environ.get(name)]
    if missing:
        raise ValueError(
            "Expected to be in a task of a Slurm job step. "
            f"Received: no {', '.join(missing)}. Start the script through srun."
        )
    base = _FIRST_PORT + int(os.environ["SLURM_JOB_ID"]) % _BLOCKS * _BLOCK if port is None else port
    nodes, tasks = os.environ["SLURM_STEP_NODELIST"], os.environ["SLURM_STEP_TASKS_PER_NODE"]
    told = f"SLURM_STEP_NODELIST={nodes!r} and SLURM_STEP_TASKS_PER_NODE={tasks!r}"
    names, counts = list(_names(nodes)), list(_counts(tasks))
    if len(names) != len(counts) or sum(counts) != int(os.environ["SLURM_STEP_NUM_TASKS"]):
        raise ValueError(
            f"Expected the nodes of the step with the number of tasks on each, "
            f"{os.environ['SLURM_STEP_NUM_TASKS']} in all. Received: {told}."
        )
    addresses = [
        f"{name}:{base + local}" for name, count in zip(names, counts, strict=True) for local in range(count)
    ]
    here = f"{os.environ['SLURMD_NODENAME']}:{base + int(os.environ['SLURM_LOCALID'])}"
    if here not in addresses:
        raise ValueError(
            f"Expected this task, {here}, to be one of the step's. Received: {addresses} from {told}."
        )
    return tf_config_of(addresses, addresses.index(here))


def _names(nodes: str) -> Iterator[str]:
    """Yields the names of a list such as ``a[01-02,7]-ib,b7``, in its order."""
    if "".join(entries := _ENTRY.findall(nodes)).replace(",", "") != nodes.replace(",", ""):
        raise ValueError(
            f"Expected SLURM_STEP_NODELIST to be a list such as 'a[01-02],b7'. Received: {nodes!r}."
        )
    for entry in entries:
        texts = re.split(r"\[(.*?)\]", entry)  # In turn: a text, what stands in brackets, a text ...
        choices = [list(_numbers(text)) if place % 2 else [text] for place, text in enumerate(texts)]
        yield from map("".join, itertools.product(*choices))


def _numbers(ranges: str) -> Iterator[str]:
    """Yields the numbers of ``01-02,7``, with their leading zeros."""
    for each in ranges.split(","):
        if (match := _RANGE.fullmatch(each)) is None:
            raise ValueError(
                f"Expected numbers in the brackets of SLURM_STEP_NODELIST. Received: '[{ranges}]'."
            )
        first, last = match[1], match[2] or match[1]
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def _counts(tasks: str) -> Iterator[int]:
    """Yields the number of tasks on each node, of a list such as ``2(x3),1``."""
    for each in tasks.split(","):
        if (match := _TASKS.fullmatch(each)) is None:
            raise ValueError(
                f"Expected SLURM_STEP_TASKS_PER_NODE to be a list such as '2(x3),1'. Received: {tasks!r}."
            )
        yield from [int(match[1])] * int(match[2] or 1)
