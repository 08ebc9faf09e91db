from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_preempt.backend.tensorflow.variables import LARGE, TensorFlowVariables
from keras_preempt.checkpoint.dtypes import dtype_of
from keras_preempt.checkpoint.tensors import Array, empty

VARIABLES = TensorFlowVariables()


TYPES = ["float32", "float16", "bfloat16", "float8_e4m3fn", "int64", "uint8", "bool"]


def filled(dtype: str, count: int) -> Array:
    array = empty(dtype, (count,))
    array[...] = (np.arange(count) % 2).astype(dtype_of(dtype))
    return array


def value(variable: Any) -> Array:
    return np.asarray(variable.read_value())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [8, LARGE])
def test_a_value_comes_out_as_it_went_in(dtype: str, size: int) -> None:
    array = filled(dtype, size)
    variable = tf.Variable(np.zeros_like(array))
    VARIABLES.assign([variable], array)
    for captured in (VARIABLES.views({"v": variable})["v"], VARIABLES.copies({"v": variable}, {})["v"]):
        assert (captured.dtype, captured.tobytes()) == (array.dtype, array.tobytes())


@pytest.mark.parametrize("dtype", TYPES)
def test_a_view_is_no_copy_and_a_copy_outlives_an_assignment(dtype: str) -> None:
    array = filled(dtype, LARGE)
    variable = tf.Variable(array)
    assert np.shares_memory(VARIABLES.views({"v": variable})["v"], VARIABLES.views({"v": variable})["v"])
    copied = VARIABLES.copies({"v": variable}, {})["v"]
    assert not np.shares_memory(copied, VARIABLES.views({"v": variable})["v"])
    variable.assign(np.zeros_like(array))
    assert copied.tobytes() == array.tobytes()


def test_the_view_of_an_embedding_that_trains_is_no_copy_and_stays_as_it_is() -> None:
    variable = tf.Variable(tf.zeros((LARGE, 2)))
    update = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([3]))
    variable.scatter_add(update)
    view = VARIABLES.views({"v": variable})["v"]
    assert np.shares_memory(view, VARIABLES.views({"v": variable})["v"])
    variable.scatter_add(update)
    assert view[3].tolist() == [1, 1]
    assert VARIABLES.views({"v": variable})["v"][3].tolist() == [2, 2]


@pytest.mark.parametrize("dtype", [name for name in TYPES if not name.startswith("float8")])
def test_a_large_restored_array_is_taken_over_without_a_copy(dtype: str) -> None:
    array = filled(dtype, LARGE)
    variable = tf.Variable(np.zeros_like(array))
    VARIABLES.assign([variable], array)
    assert np.shares_memory(value(variable), array)


def test_what_cannot_be_taken_over_is_copied() -> None:
    large = np.zeros((1024, 1024), np.float32)
    read_only = filled("float32", LARGE)
    read_only.flags.writeable = False
    unaligned = empty("uint8", (LARGE + 4,))[4:].view(np.float32)
    unaligned[...] = 3
    for array in (large.T, read_only, unaligned, filled("float32", 8)):
        variable = tf.Variable(np.ones_like(array))
        VARIABLES.assign([variable], array)
        assert not np.shares_memory(value(variable), array)
        assert value(variable).tobytes() == array.tobytes()


@pytest.mark.parametrize("compiled", [False, True])
def test_training_never_writes_to_an_array_that_was_taken_over(compiled: bool) -> None:
    array = filled("float32", LARGE // 4).reshape(-1, 256)
    before = array.copy()
    variables = [tf.Variable(np.zeros_like(array)) for _ in range(3)]
    VARIABLES.assign(variables[:2], array)  # as two replicas on one device have it
    VARIABLES.assign([variables[2]], array)

    @tf.function(jit_compile=compiled)
    def step() -> None:
        variables[0].assign_add(tf.ones_like(variables[0]))
        variables[1].assign_sub(tf.ones_like(variables[1]))
        variables[2].assign(variables[2] * 3.0)
        if not compiled:
            variables[0].scatter_sub(tf.IndexedSlices(tf.ones((1, 256)), tf.constant([0])))
            tf.raw_ops.ResourceApplyGradientDescent(
                var=variables[1].handle, alpha=1.0, delta=tf.ones_like(variables[1])
            )

    step()
    step()
    assert np.array_equal(array, before)
    assert value(variables[0])[1, 0] == before[1, 0] + 2
    assert np.array_equal(value(variables[2]), before * 9)


def test_only_the_elements_of_the_own_share_are_copied() -> None:
    variables = {"cut": tf.Variable(tf.range(1, 2 * LARGE)), "whole": tf.Variable(tf.range(4))}
    copied = VARIABLES.copies(variables, {"cut": (LARGE, LARGE + 10)})
    assert copied["cut"].shape == (2 * LARGE - 1,)
    assert copied["cut"][LARGE : LARGE + 10].tolist() == list(range(LARGE + 1, LARGE + 11))
    assert not np.array_equal(copied["cut"][:LARGE], np.arange(1, LARGE + 1))
    assert copied["whole"].tolist() == [0, 1, 2, 3]
