"""Refuses several processes: on torch, one process trains a model."""

from __future__ import annotations

import os

import torch.distributed

from keras_preempt.process import environment

_INSTEAD = (
    "Start one process: `python train.py`, or `keras-preempt run -- python train.py`. To train with several, take the "
    "TensorFlow or the JAX backend."
)


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
