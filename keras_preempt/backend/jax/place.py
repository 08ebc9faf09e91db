"""Finds this process among those that train one model together.

What stands for a strategy here is the `keras.distribution.Distribution` that is set when training begins; None where
none is.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import keras

from keras_preempt.backend.jax import distributed
from keras_preempt.backend.place import NO_WORKERS, Job, Place, RemoteWorkers
from keras_preempt.process import environment


def strategy_of(model: Any) -> Any:
    """Returns the distribution that a model trains under; None for none."""
    return keras.distribution.distribution()


def replicas(distribution: Any) -> int:
    """Returns into how many parts a batch of all processes is divided."""
    return 1 if distribution is None else int(distribution.num_model_replicas)


def layout(distribution: Any) -> str:
    """Returns how variables are divided, in words; empty where every device has all of them."""
    if not isinstance(distribution, keras.distribution.ModelParallel):
        return ""
    mesh = distribution.device_mesh
    axes = " x ".join(f"{name}={size}" for name, size in zip(mesh.axis_names, mesh.shape, strict=True))
    return f"ModelParallel over {axes}"


def place(distribution: Any) -> Place:
    """Finds this process among those of the mesh of a distribution.

    Raises:
        ValueError: The mesh has devices of some processes of the job and not of all.
    """
    everyone = jax.process_count()
    if everyone == 1 or distribution is None:
        return Place()
    processes = sorted({device.process_index for device in _devices(distribution)})
    here = jax.process_index()
    if processes == [here]:
        return Place()
    if processes != list(range(everyone)):
        raise ValueError(
            f"Expected a distribution over devices of all {everyone} processes of the job. Received: one over those of "
            f"the processes {processes}. Make its device mesh of keras.distribution.list_devices()."
        )
    return Place(here, everyone, f"process {here}", (("process", everyone),), joins=True)


def place_of_loop(resolver: Any) -> tuple[Place, Any]:
    """Refuses: custom loops of JAX have no strategy to be found by.

    Raises:
        ValueError: Always.
    """
    raise ValueError(
        "Expected PreemptionCheckpointHandler to be used with TensorFlow, of whose custom loops it is a part. "
        "Received: Keras on JAX. Train with model.fit and PreemptionCallback."
    )


def in_a_cluster() -> bool:
    """Whether this process is one of several of a job."""
    if distributed.client() is not None:
        return int(jax.process_count()) > 1
    try:
        return int(os.environ.get(environment.KERAS_PROCESSES) or 1) > 1
    except ValueError:  # The variable is what the program was given, whatever that is.
        return False


def job() -> Job | None:
    """Returns the processes that JAX has connected, by whatever it has found them; None if there is only this one."""
    processes = int(jax.process_count())
    return None if processes == 1 else Job(int(jax.process_index()), processes, distributed.name_of_job())


def remote_workers() -> RemoteWorkers:
    """Returns none: a process of JAX runs everything on devices of its own machine."""
    return NO_WORKERS


def _devices(distribution: Any) -> list[Any]:
    return list(distribution.device_mesh.backend_mesh.devices.flat)
