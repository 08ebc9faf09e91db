"""The rows of a mesh, in every arrangement of the devices of 1 to 4 processes with 1 and 2 devices each."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from jax._src.sharding_impls import NonUniformShardingError, get_process_index_and_count

from keras_preempt.backend.jax.place import Rows, count_rows, rows_of
from keras_preempt.backend.keras.names import KerasInternalsError
from keras_preempt.checkpoint.setup import Setup
from keras_preempt.state.samples import convert
from tests.backend.jax.conftest import model_parallel

BATCH, STEPS, SAMPLES = 24, 15, 960
JOBS = [(processes, devices) for processes in (1, 2, 3, 4) for devices in (1, 2)]


def orders(left: dict[int, int]) -> Iterator[tuple[int, ...]]:
    """Every order of the devices, by their processes."""
    if not left:
        yield ()
    for process in left:
        rest = {each: n - (each == process) for each, n in left.items()}
        for order in orders({each: n for each, n in rest.items() if n}):
            yield (process, *order)


def meshes(processes: int, devices: int) -> Iterator[Any]:
    """The process of each device, in every mesh of two directions, the first of which divides a batch."""
    size = processes * devices
    for rows in (rows for rows in range(1, size + 1) if size % rows == 0):
        for order in orders(dict.fromkeys(range(processes), devices)):
            yield np.array(order).reshape(rows, size // rows)


def shares_of_jax(owners: Any, process: int) -> int | None:
    """Into how many shares JAX takes a batch to be divided when a process brings its own."""
    rows = len(owners)
    places = {
        Device(number, int(owner)): (slice(row, row + 1), slice(None))
        for number, (row, owner) in enumerate((row, owner) for row, of in enumerate(owners) for owner in of)
    }
    sharding: Any = Sharding()
    sharding.is_fully_addressable = len({device.process_index for device in places}) == 1
    sharding.is_fully_replicated = rows == 1
    sharding.num_devices = len(places)
    sharding.devices_indices_map = lambda shape: places
    sharding.addressable_devices = {device for device in places if device.process_index == process}
    try:
        return int(get_process_index_and_count(sharding, 0, 2)[1])
    except NonUniformShardingError:
        return None


class Sharding:
    """Stands for one of JAX."""


class Device:
    """Stands for a device."""

    def __init__(self, number: int, process: int) -> None:
        self.id, self.process_index = number, process


@pytest.mark.parametrize(("processes", "devices"), JOBS)
def test_in_every_arrangement_a_batch_is_what_jax_takes_it_for(processes: int, devices: int) -> None:
    seen: set[Rows] = set()
    for owners in meshes(processes, devices):
        for axis, mesh in ((0, owners), (1, owners.T)):
            found = [count_rows(mesh, axis, process) for process in range(processes)]
            for process, rows in enumerate(found):
                assert rows.shares == shares_of_jax(owners, process), owners
                assert rows.here == sum(process in row for row in owners.tolist()), owners
                if rows.shares is not None:
                    # What each process brings of a batch makes a whole one.
                    assert BATCH * rows.here // len(owners) * rows.shares == BATCH, owners
            seen.update(found)
    assert any(rows.shares == 1 for rows in seen)
    assert processes == 1 or any(rows.shares == processes for rows in seen)


def setups() -> Iterator[Setup]:
    """What a fit of every job trains on, of every way in which its processes divide a batch."""
    for processes, devices in JOBS:
        kinds = {
            (len(owners), *(count_rows(owners, 0, process) for process in range(processes)))
            for owners in meshes(processes, devices)
        }
        for rows, *found in sorted(kinds, key=repr):
            for each in found:
                if each.shares is not None:
                    own = BATCH * each.here // rows
                    yield Setup(processes, rows, own * each.shares, SAMPLES // BATCH, 0)


def test_restarted_on_every_other_arrangement_the_input_goes_on_at_the_sample_after_the_last() -> None:
    where = {"epoch": 0, "phase": "train", "batch": STEPS, "step": STEPS}
    place = {"batches": STEPS, "num_batches": None, "iterators": 1, "drawn_before": [], "current": True}
    every = list(dict.fromkeys(setups()))
    assert len(every) > 10
    for old in every:
        for new in every:
            found = convert(where, place, old, new, steps_per_execution=1, num_batches=None)
            assert (found.sample, found.where["batch"], found.warnings) == (STEPS * BATCH, STEPS, ()), (
                old,
                new,
            )


def test_of_a_distribution_the_direction_that_divides_a_batch_counts() -> None:
    assert rows_of(None) == Rows(1, 1)
    model_parallel()
    assert rows_of(keras.distribution.distribution()) == Rows(2, 1)
    assert rows_of(keras.distribution.DataParallel()) == Rows(4, 1)


def test_a_mesh_that_does_not_know_its_devices_is_refused_with_what_to_install() -> None:
    """As those of Keras before 3.10."""
    distribution = SimpleNamespace(device_mesh=SimpleNamespace(axis_names=["batch"], shape=(2,)))
    with pytest.raises(
        KerasInternalsError, match=r"from Keras 3\.10 on\), to train under a distribution.*Install"
    ):
        rows_of(distribution)
