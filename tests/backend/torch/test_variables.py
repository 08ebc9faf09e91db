"""The values of variables, buffers and generators are read and assigned with every bit."""

from __future__ import annotations

from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest
import torch

from keras_preempt.backend.torch.variables import PlainGenerator, TorchVariables

VARIABLES = TorchVariables()

TYPES = (
    *("float16", "float32", "float64", "bfloat16"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool"),
)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (2, 3)], ids=str)
def test_a_variable_of_any_type_keeps_its_bits(dtype: str, shape: tuple[int, ...]) -> None:
    wanted = np.dtype(getattr(ml_dtypes, dtype, dtype))
    value = np.asarray(np.random.default_rng(1).integers(0, 2, shape)).astype(wanted)
    variable = keras.Variable(np.zeros(shape), dtype=dtype, trainable=False)
    VARIABLES.assign([variable], value)
    for read in (VARIABLES.views({"v": variable}), VARIABLES.copies({"v": variable}, {})):
        assert (read["v"].dtype, read["v"].tobytes()) == (wanted, value.tobytes())


def test_a_view_changes_with_its_variable_and_a_copy_does_not() -> None:
    variable = keras.Variable(np.zeros(3), dtype="float32")
    view, copy = VARIABLES.views({"v": variable})["v"], VARIABLES.copies({"v": variable}, {})["v"]
    variable.assign(np.ones(3))
    assert (view.tolist(), copy.tolist()) == ([1, 1, 1], [0, 0, 0])


def test_a_value_of_another_shape_is_refused() -> None:
    variable = keras.Variable(np.zeros(3))
    with pytest.raises(ValueError, match=r"Expected a value of shape \(3,\).*Received: \(2,\)"):
        VARIABLES.assign([variable], np.zeros(2, "float32"))


def test_an_assigned_array_is_not_changed_by_training() -> None:
    variable = keras.Variable(np.zeros(3), dtype="float32")
    given = np.ones(3, "float32")
    VARIABLES.assign([variable], given)
    variable.assign(np.full(3, 5.0))
    assert given.tolist() == [1, 1, 1]


class Held(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2))
        self.generators = [torch.Generator().manual_seed(3)]


def test_buffers_and_generators_of_layers_are_found() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    model = keras.Sequential(
        [keras.Input((3,)), Held(), keras.layers.TorchModuleWrapper(module, output_shape=(None, 2))]
    )
    own = {id(variable.value) for variable in model.variables}
    found: dict[str, Any] = {v.path: v for v in VARIABLES.plain_variables(model) if id(v.value) not in own}
    assert len([path for path in found if path.endswith("running_mean")]) == 1
    assert len([path for path in found if path.endswith("num_batches_tracked")]) == 1
    assert len([path for path in found if path.endswith("seen")]) == 1
    (generator,) = [each for each in found.values() if isinstance(each, PlainGenerator)]
    state = np.array(VARIABLES.views({"g": generator})["g"])
    drawn = torch.rand(3, generator=generator.generator)
    VARIABLES.assign([generator], state)
    assert torch.equal(torch.rand(3, generator=generator.generator), drawn)
    assert len({VARIABLES.identity(each) for each in found.values()}) == len(found)


def test_a_buffer_that_is_replaced_is_read_and_assigned_where_it_is_now() -> None:
    layer = Held()
    model = keras.Sequential([keras.Input((3,)), layer])
    (seen,) = [each for each in VARIABLES.plain_variables(model) if each.path.endswith("seen")]
    before = VARIABLES.identity(seen)
    layer.seen = layer.seen + 3.0
    assert VARIABLES.views({"v": seen})["v"].tolist() == [3, 3]
    VARIABLES.assign([seen], np.array([4.0, 5.0], "float32"))
    assert layer.seen.tolist() == [4, 5]
    assert VARIABLES.identity(seen) == before
