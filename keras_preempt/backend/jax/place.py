"""Finds this process among those that train one model together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import keras
import numpy as np

from keras_preempt.backend.jax import distributed
from keras_preempt.backend.keras.names import KerasInternalsError
from keras_preempt.backend.place import Job, JobSource, Neighbours, Place
from keras_preempt.process import environment

_OVER_ALL = "set a keras.distribution.DataParallel() or ModelParallel over keras.distribution.list_devices()"

_BY_KERAS = JobSource(
    f"{environment.KERAS_PROCESSES} names",
    environment.KERAS_PROCESSES,
    f"call keras.distribution.initialize() and {_OVER_ALL} before it is made",
    environment.KERAS_PROCESS,
)
_BY_JAX = JobSource(
    "jax.distributed has connected",
    "the job of jax.distributed",
    f"{_OVER_ALL} before it is made",
    "jax.process_index()",
)


def layout(strategy: Any) -> str:
    """Returns how variables are divided, in words; empty where every device has all of them."""
    if not isinstance(strategy, keras.distribution.ModelParallel):
        return ""
    mesh = strategy.device_mesh
    axes = " x ".join(f"{name}={size}" for name, size in zip(mesh.axis_names, mesh.shape, strict=True))
    return f"ModelParallel over {axes}"


def place(strategy: Any) -> Place:
    """Finds this process among those of the mesh of a distribution.

    Raises ValueError if that has devices of some processes of the job and not of all.
    """
    everyone = jax.process_count()
    if everyone == 1 or strategy is None:
        return Place()
    processes = sorted({device.process_index for device in devices_of(strategy).flat})
    here = jax.process_index()
    if processes == [here]:
        return Place()
    if processes != list(range(everyone)):
        raise ValueError(
            f"Expected a distribution over devices of all {everyone} processes of the job. Received: one over those of "
            f"the processes {processes}. Make its device mesh of keras.distribution.list_devices()."
        )
    return Place(here, everyone, f"process {here}", (("process", everyone),), joins=True)


def in_a_cluster() -> bool:
    """Whether this process is one of several of a job."""
    if distributed.client() is not None:
        return int(jax.process_count()) > 1
    try:
        return int(os.environ.get(environment.KERAS_PROCESSES) or 1) > 1
    except ValueError:  # The variable may be any text.
        return False


def job() -> Job | None:
    """Returns the processes that JAX has connected, however it has found them; None if there is only this one."""
    processes = int(jax.process_count())
    return None if processes == 1 else Job(int(jax.process_index()), processes, distributed.name_of_job())


def neighbours(strategy: Any) -> Neighbours | None:
    """Returns the job that JAX has connected, or that the launcher describes to Keras."""
    made_under = "no distribution" if strategy is None else type(strategy).__name__
    if (found := job()) is not None:
        return Neighbours(f"process {found.process}", found.processes, found.name, made_under, _BY_JAX)
    try:
        members = int(os.environ.get(environment.KERAS_PROCESSES) or 1)
        index = int(os.environ.get(environment.KERAS_PROCESS) or 0)
    except ValueError:  # What keras.distribution.initialize would not take either.
        return None
    if members < 2:
        return None
    addresses = os.environ.get(environment.KERAS_ADDRESSES) or ""
    return Neighbours(f"process {index}", members, addresses, made_under, _BY_KERAS)


@dataclass(frozen=True)
class Rows:
    """Which part of a batch a process provides, from the places of the processes' devices in the mesh.

    A batch is divided among the rows of the mesh, and each device has the samples of its row. A process provides the
    samples of all rows in which it has a device, and `shares` is how many different shares there are: processes with
    the same rows provide the same samples, and if all rows span all processes, each provides the whole batch. It is
    None if two processes have some but not all rows in common, which JAX refuses.
    """

    here: int  # How many rows this process has a device in.
    shares: int | None


def rows_of(distribution: Any) -> Rows:
    """Returns the rows of a distribution's mesh, as this process has them."""
    if distribution is None:
        return Rows(1, 1)
    owners = np.vectorize(lambda device: device.process_index, otypes=[int])(devices_of(distribution))
    return count_rows(owners, batch_axis(distribution), int(jax.process_index()))


def batch_axis(distribution: Any) -> int:
    """Returns the axis of a distribution's mesh that divides a batch."""
    return list(distribution.device_mesh.axis_names).index(distribution.batch_dim_name)


def devices_of(distribution: Any) -> Any:
    """Returns the devices of a distribution's mesh, as JAX has them.

    Raises KerasInternalsError on Keras before 3.10, whose meshes do not know them.
    """
    mesh = getattr(distribution.device_mesh, "backend_mesh", None)
    if mesh is None:
        raise KerasInternalsError(
            "keras.distribution.DeviceMesh.backend_mesh (from Keras 3.10 on), to train under a distribution",
            "no such property",
        )
    return mesh.devices


def count_rows(owners: Any, axis: int, process: int) -> Rows:
    """Counts the rows of a mesh for a process: `owners` has the process of each device, `axis` divides a batch."""
    by_row = np.moveaxis(np.asarray(owners), axis, 0).reshape(np.shape(owners)[axis], -1)
    rows: Mapping[int, frozenset[int]] = {
        int(each): frozenset(np.flatnonzero((by_row == each).any(axis=1)).tolist())
        for each in np.unique(by_row)
    }
    shares = set(rows.values())
    alike = len({len(share) for share in shares}) == 1 and sum(map(len, shares)) == len(by_row)
    return Rows(len(rows.get(process, ())), len(shares) if alike else None)
