"""On torch, one process trains a model: several that would train one are refused, others are kept apart."""

from __future__ import annotations

import os

import torch.distributed

from keras_preempt.backend.place import JobSource, Neighbours
from keras_preempt.process import environment

_INSTEAD = (
    "Keras 3.15 does not train one model in several processes of torch. Start one process: `python train.py`, or "
    "`keras-preempt run -- python train.py`. To train with several, take the TensorFlow or the JAX backend."
)


_BY_LAUNCHER = JobSource(
    f"{environment.KERAS_PROCESSES} names",
    environment.KERAS_PROCESSES,
    "take the TensorFlow or the JAX backend",
    environment.KERAS_PROCESS,
)


def neighbours(strategy: object) -> Neighbours | None:
    """Returns the job of several workers that a launcher describes to Keras, of which each trains its own model."""
    try:
        members = int(os.environ.get(environment.KERAS_PROCESSES) or 1)
        index = int(os.environ.get(environment.KERAS_PROCESS) or 0)
    except ValueError:  # The variable may be any text.
        return None
    if members < 2:
        return None
    addresses = os.environ.get(environment.KERAS_ADDRESSES) or ""
    return Neighbours(f"process {index}", members, addresses, "torch, in one process", _BY_LAUNCHER)


def check_alone() -> None:
    """Raises RuntimeError if this process is one of several that torch has connected, or `torchrun` has started."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        connected = int(torch.distributed.get_world_size())
        if connected > 1:
            raise RuntimeError(
                "Expected one process that trains by itself, as keras-preempt needs it on the torch backend. "
                f"Received: torch.distributed with {connected} processes. {_INSTEAD}"
            )
    started = os.environ.get(environment.TORCH_PROCESSES, "")
    if started.isdecimal() and int(started) > 1:
        raise RuntimeError(
            "Expected one process that trains by itself, as keras-preempt needs it on the torch backend. Received: "
            f"{environment.TORCH_PROCESSES}={started}, which torchrun sets for each of its processes. {_INSTEAD} If "
            f"this process does train by itself: unset {environment.TORCH_PROCESSES} for it."
        )
