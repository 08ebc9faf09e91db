"""The values of variables on one device and on several, and the pieces of those that processes divide."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import keras
import numpy as np
import pytest

from keras_preempt.backend.jax import variables
from keras_preempt.checkpoint.values import Box, Piece
from tests.backend.jax.conftest import model_parallel

VARIABLES = variables.JaxVariables()
SHAPE = (4, 6)
VALUE = np.arange(24, dtype="float32").reshape(SHAPE)


def made(kind: str) -> Any:
    if kind == "data parallel":
        keras.distribution.set_distribution(keras.distribution.DataParallel())
    elif kind == "model parallel":
        model_parallel("divided")  # Devices 0 and 2 have the left half, 1 and 3 the right one.
    return keras.Variable(VALUE, name="divided")


@pytest.fixture(params=["one device", "data parallel", "model parallel"])
def variable(request: pytest.FixtureRequest) -> Any:
    variable = made(request.param)
    devices = variable._value.sharding.device_set
    assert len(devices) == (1 if request.param == "one device" else 4)
    return variable


@pytest.fixture
def divided() -> Any:
    return made("model parallel")


def overwritten(variable: Any) -> Any:
    """The value after a step, which computes it in the memory of the one before."""
    step = jax.jit(lambda value: value * 0, donate_argnums=0)
    return jax.block_until_ready(step(variable._value))


def test_a_view_is_the_value(variable: Any) -> None:
    found = VARIABLES.views({"v": variable, "a": VALUE})
    assert found["v"].tobytes() == VALUE.tobytes()
    assert found["a"] is VALUE


def test_a_copy_outlives_a_step(variable: Any) -> None:
    found = VARIABLES.copies({"v": variable}, {})
    variable._value = overwritten(variable)
    assert found["v"].tobytes() == VALUE.tobytes()


def test_only_the_elements_that_are_needed_are_copied() -> None:
    found = VARIABLES.copies({"v": keras.Variable(VALUE)}, {"v": (5, 9)})
    assert found["v"].reshape(-1)[5:9].tolist() == [5.0, 6.0, 7.0, 8.0]


def test_an_assigned_value_is_on_every_device_as_it_was_divided(variable: Any) -> None:
    before = variable._value.sharding
    VARIABLES.assign([variable], VALUE + 100)
    after = variable._value
    assert np.asarray(after).tobytes() == (VALUE + 100).tobytes()
    assert after.sharding == before
    for shard in after.addressable_shards:
        assert np.asarray(shard.data).tobytes() == (VALUE + 100)[shard.index].tobytes()


def test_what_was_assigned_shares_no_memory_with_the_variable(variable: Any) -> None:
    array = VALUE.copy()
    VARIABLES.assign([variable], array)
    array[:] = -1
    assert np.asarray(variable._value).tobytes() == VALUE.tobytes()
    VARIABLES.assign([variable], given := VALUE.copy())
    overwritten(variable)
    assert given.tobytes() == VALUE.tobytes(), "a step has written into what a checkpoint was read into"


def test_a_variable_that_holds_nothing_can_be_assigned_to(divided: Any) -> None:
    before = divided._value.sharding
    divided._value = None
    VARIABLES.assign([divided], VALUE)
    assert divided._value.sharding.is_equivalent_to(before, 2)


def test_a_value_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(4, 6\) for 'divided'.*Received: \(6, 4\)"):
        VARIABLES.assign([keras.Variable(VALUE, name="divided")], VALUE.T)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "uint8", "bool"])
def test_every_dtype_keeps_its_bits(dtype: str) -> None:
    variable = keras.Variable(np.zeros(3, dtype), dtype=dtype)
    array = np.asarray(jax.numpy.asarray([0, 1, 1], dtype))
    VARIABLES.assign([variable], array)
    (found,) = VARIABLES.views({"v": variable}).values()
    assert (found.dtype, found.tobytes()) == (array.dtype, array.tobytes())


def test_a_variable_is_its_own_only_part() -> None:
    variable = keras.Variable(VALUE)
    assert VARIABLES.parts(None, variable) == (variable,)
    assert VARIABLES.identity(variable) == id(variable)
    assert VARIABLES.named(variable) is variable
    assert list(VARIABLES.plain_variables(None)) == []


def test_variables_and_tensors_are_told_from_each_other() -> None:
    variable, array = keras.Variable(VALUE), jax.numpy.ones(2)
    assert [VARIABLES.is_variable(each) for each in (variable, array, VALUE)] == [True, False, False]
    assert [VARIABLES.is_tensor(each) for each in (variable, array, VALUE)] == [True, True, False]
    assert isinstance(VARIABLES.to_tensor(VALUE), jax.Array)


# -- Variables that are divided among processes ------------------------------------------------------------


class Processes:
    """A mesh of devices of several processes, laid out as this process' devices are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owners: list[int], here: int = 0) -> None:
        self._owners = dict(zip(jax.devices(), owners, strict=True))
        monkeypatch.setattr(jax, "process_count", lambda: len(set(owners)))
        monkeypatch.setattr(jax, "process_index", lambda: here)
        monkeypatch.setattr(variables, "_sharding_of", self._sharding_of)

    def _sharding_of(self, variable: Any) -> Any:
        value = variable._value

        def devices_indices_map(shape: Any) -> dict[Any, Any]:
            real = value.sharding.devices_indices_map(shape)
            # Two devices of one process are different ones.
            return {_Device(device.id, self._owners[device]): index for device, index in real.items()}

        return SimpleNamespace(devices_indices_map=devices_indices_map)


class _Device:
    def __init__(self, number: int, process: int) -> None:
        self.id, self.process_index = number, process


LEFT, RIGHT = ((0, 0), (4, 3)), ((0, 3), (4, 6))


@pytest.mark.parametrize(
    ("kind", "owners", "pieces"),
    [
        ("model parallel", [0, 1, 2, 3], (Piece(*LEFT, (0, 2)), Piece(*RIGHT, (1, 3)))),
        ("model parallel", [0, 1, 0, 1], (Piece(*LEFT, (0,)), Piece(*RIGHT, (1,)))),
        ("model parallel", [0, 0, 1, 1], None),
        ("model parallel", [0, 0, 0, 0], None),
        ("model parallel", [0, 0, 0, 1], (Piece(*LEFT, (0,)), Piece(*RIGHT, (0, 1)))),
        ("data parallel", [0, 1, 2, 3], None),
    ],
)
def test_the_pieces_of_a_variable_are_those_that_no_process_has_all_of(
    kind: str, owners: list[int], pieces: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = made(kind)
    Processes(monkeypatch, owners)
    assert VARIABLES.pieces(variable) == pieces


def test_a_process_that_trains_alone_in_a_job_has_all_of_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    variable = made("data parallel")
    Processes(monkeypatch, [1, 1, 1, 1], here=1)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert VARIABLES.pieces(variable) is None


@pytest.mark.parametrize(("here", "expected"), [(0, (LEFT,)), (1, (RIGHT,))])
def test_a_process_needs_what_its_devices_have(
    here: int, expected: Any, divided: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Processes(monkeypatch, [0, 1, 0, 1], here)
    assert VARIABLES.needed(divided) == expected


BOXES = [Box("divided", "float32", SHAPE, *span) for span in (LEFT, RIGHT)]


@pytest.mark.parametrize("copy", [False, True])
def test_pieces_are_read_one_by_one(copy: bool, divided: Any) -> None:
    left, right = VARIABLES.read_pieces(divided, BOXES, copy=copy)
    assert left.tobytes() == VALUE[:, :3].tobytes()
    assert right.tobytes() == VALUE[:, 3:].tobytes()
    if copy:
        overwritten(divided)
        assert left.tobytes() == VALUE[:, :3].tobytes()


def test_pieces_are_assigned_where_they_belong(divided: Any) -> None:
    before = divided._value.sharding
    left, right = BOXES
    VARIABLES.assign_pieces(divided, {right: VALUE[:, 3:] + 50, left: VALUE[:, :3] - 50})
    expected = np.concatenate([VALUE[:, :3] - 50, VALUE[:, 3:] + 50], axis=1)
    assert np.asarray(divided._value).tobytes() == expected.tobytes()
    assert divided._value.sharding == before


def test_the_bounds_of_a_piece_are_numbers_also_where_a_dimension_is_whole() -> None:
    assert variables.bounds((slice(None), slice(2, None)), (4, 6)) == ((0, 2), (4, 6))
    assert variables.bounds((), ()) == ((), ())
