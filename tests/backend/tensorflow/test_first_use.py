"""Variables are told of before they are first used, whichever way; Keras is as it was afterwards."""

from __future__ import annotations

import functools
import gc
from typing import Any

import keras
import pytest
import tensorflow as tf

from keras_preempt.backend.keras import first_use

FirstUse = functools.partial(first_use.FirstUse, outside=tf.init_scope)


@pytest.mark.parametrize(
    "use",
    [
        lambda v: v.numpy(),
        lambda v: v + 1.0,
        lambda v: tf.reduce_sum(v),
        lambda v: v.assign(2.0),
        lambda v: v.assign_add(1.0),
        lambda v: keras.ops.convert_to_tensor(v),
        lambda v: v.value.assign_sub(1.0),
        lambda v: tf.function(lambda: v + 1.0)(),
    ],
)
def test_every_way_to_use_a_variable_is_told_once(use: Any) -> None:
    told: list[Any] = []

    def look(variable: Any) -> bool:
        told.append((variable, variable.value.numpy()))
        return True

    known = keras.Variable(1.0)
    watch = FirstUse([known], look)
    new = keras.Variable(1.0)
    assert told == [], "making it is no use"
    known.numpy()
    use(new)
    new.numpy()
    assert told == [(new, 1.0)], "told late, or not once"
    watch.stop()
    keras.Variable(1.0).numpy()
    assert len(told) == 1


def test_keras_is_as_it_was_once_nobody_watches() -> None:
    value, assign = keras.Variable.value, keras.Variable.assign
    watch, other = FirstUse([], lambda variable: True), FirstUse([], lambda variable: True)
    assert keras.Variable.value is not value
    watch.stop()
    watch.stop()
    assert keras.Variable.value is not value
    del other
    gc.collect()
    assert keras.Variable.value is value
    assert keras.Variable.assign is assign


def test_nothing_is_told_while_shapes_are_inferred() -> None:
    told: list[Any] = []
    watch = FirstUse([], lambda variable: bool(told.append(variable)))
    keras.layers.Dense(2).compute_output_spec(keras.KerasTensor((3, 4)))
    assert told == []
    watch.stop()


def test_values_are_read_as_they_are_within_a_layer_of_mixed_precision() -> None:
    seen: list[Any] = []
    layer = keras.layers.Dense(2, dtype="mixed_float16")
    watch = FirstUse([], lambda variable: bool(seen.append(variable.value.dtype)) or True)
    layer(tf.ones((1, 3)))
    watch.stop()
    assert set(seen) == {tf.float32}
