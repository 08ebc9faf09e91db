"""Which part of a batch a process brings: counted from where the devices of the processes are in the mesh.

A mesh has as many rows as parts that a batch is divided into, and each device has the samples of its row. A process
brings the samples of all rows in which it has a device. Processes that share their rows bring the same samples: with
rows that go across all processes, each of them brings the whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np


@dataclass(frozen=True)
class Rows:
    """The rows of a mesh.

    Attributes:
        here: How many of them this process brings.
        shares: Into how many different shares the processes divide a batch; None if two of them have some rows in
            common and not all, which JAX refuses.
    """

    here: int
    shares: int | None


ONE = Rows(1, 1)
"""Those of a process that divides no batch."""


def rows_of(distribution: Any) -> Rows:
    """Returns the rows of a distribution's mesh, as this process has them."""
    if distribution is None:
        return ONE
    mesh = distribution.device_mesh
    axis = list(mesh.axis_names).index(distribution.batch_dim_name)
    owners = np.vectorize(lambda device: device.process_index, otypes=[int])(mesh.backend_mesh.devices)
    return counted(owners, axis, int(jax.process_index()))


def counted(owners: Any, axis: int, process: int) -> Rows:
    """Counts the rows of a mesh.

    Args:
        owners: The process of each device, in the shape of the mesh.
        axis: The direction in which the mesh divides a batch.
        process: The one that counts.
    """
    by_row = np.moveaxis(np.asarray(owners), axis, 0).reshape(np.shape(owners)[axis], -1)
    rows: Mapping[int, frozenset[int]] = {
        int(each): frozenset(np.flatnonzero((by_row == each).any(axis=1)).tolist())
        for each in np.unique(by_row)
    }
    shares = set(rows.values())
    alike = len({len(share) for share in shares}) == 1 and sum(map(len, shares)) == len(by_row)
    return Rows(len(rows.get(process, ())), len(shares) if alike else None)
