from __future__ import annotations

import json
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_preempt.backend.keras.model_parts import global_seed_state
from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.state.model import SMALL, ModelState

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4)
Y = X.sum(axis=1, keepdims=True)


def trained(steps: int = 2, seed: int = 0, *, renumber: bool = True) -> keras.Model:
    if renumber:  # layers from the start, as in a new process
        keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    inner = [layers.Dense(300), layers.BatchNormalization(), layers.Dropout(0.5, seed=seed), layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *inner])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], jit_compile=False)
    model.fit(X, Y, batch_size=8, epochs=steps // 2, verbose=0)
    return model


@pytest.fixture(scope="module")
def model() -> keras.Model:
    return trained()


@pytest.fixture(scope="module")
def other_start() -> keras.Model:
    """The same program with other numbers in it."""
    return trained(steps=4, seed=9)


def state_of(model: keras.Model, **options: bool) -> ModelState:
    return ModelState(model, tf.distribute.get_strategy(), **options)


Values = dict[str, np.ndarray]


def taken(state: ModelState) -> tuple[Values, Values]:
    """Copies of what is mirrored and of what is local."""
    values = state.capture()
    both = values.whole, values.local
    mirrored, local = ({name: np.array(value) for name, value in values.items()} for values in both)
    return mirrored, local


def assert_same_bits(before: tuple[Values, Values], after: tuple[Values, Values]) -> None:
    for one, other in zip(before, after, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert value.dtype == other[name].dtype, name
            assert value.tobytes() == other[name].tobytes(), name


def test_every_variable_of_training_is_captured_once_and_only_what_is_asked_for(model: keras.Model) -> None:
    state = state_of(model)
    captured = state.capture().flat()
    wanted = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    assert len({id(variable) for variable in wanted}) == len(state.mirrored)
    parts = ("moving_mean", "momentum", "velocity", "iteration", "learning_rate", "metrics/")
    for part in ("seed_generator", *parts):
        assert any(part in name for name in captured), part
    name = next(iter(state.mirrored))
    assert list(state.capture([name]).flat()) == [name]


def test_what_was_captured_gives_another_model_the_same_bits_now_and_later(other_start: keras.Model) -> None:
    first = trained()
    before = taken(state_of(first))
    first.fit(X, Y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    state_of(other_start).restore(WorkerValues(*before))
    assert_same_bits(before, taken(state_of(other_start)))
    other_start.fit(X, Y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    for one, two in zip(first.variables, other_start.variables, strict=True):
        assert one.numpy().tobytes() == two.numpy().tobytes(), one.path


def test_what_the_checkpoint_lacks_is_left_alone_and_what_the_model_lacks_waits(model: keras.Model) -> None:
    state = state_of(model)
    before = taken(state)
    state.restore(WorkerValues())
    state.restore(WorkerValues({"model/no such variable": np.zeros(1)}, {"model/neither@0": np.zeros(1)}))
    assert state.waiting == ["model/no such variable", "model/neither"]
    state.wait_no_more()
    assert_same_bits(before, taken(state_of(model)))


def test_two_runs_of_one_program_name_their_variables_alike_and_a_change_of_the_model_shows(
    model: keras.Model, other_start: keras.Model
) -> None:
    signature = state_of(model).signature()
    assert state_of(other_start).signature() == signature
    assert {"name", "shape", "dtype"} == set(signature[0])
    assert json.loads(json.dumps(signature)) == signature
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    other.compile("adam", "mse")
    other.optimizer.build(other.trainable_variables)
    assert state_of(other).signature() != signature


def test_what_a_validation_changes_is_captured_as_a_copy(model: keras.Model) -> None:
    state = state_of(model)
    captured = state.capture_changed_by_validation(weights=False).flat()
    kept = {name: np.array(value) for name, value in captured.items()}
    assert any("metrics/" in name for name in captured)
    assert any("seed_generator" in name for name in captured)
    assert not any("kernel" in name for name in captured)
    every = state.capture().flat()
    assert captured.keys() <= every.keys()  # the same names, to be written in their place
    for variable in model.metrics_variables:
        variable.assign(np.full(variable.shape, 7, variable.dtype))
    for name, value in captured.items():
        np.testing.assert_array_equal(value, kept[name])


def test_small_is_what_a_callback_may_touch_before_the_first_step(model: keras.Model) -> None:
    state = state_of(model)
    small = state.small(state.capture()).flat()
    for part in ("learning_rate", "metrics/", "seed_generator"):
        assert any(part in name for name in small), part
    assert not any(value.nbytes > SMALL and "metrics" not in name for name, value in small.items())
    assert any(value.nbytes > SMALL for value in state.capture().whole.values())


def test_the_global_seed_is_restored_and_made_only_where_the_checkpoint_has_one() -> None:
    keras.utils.clear_session()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(X, Y, verbose=0, shuffle=False)
    state = state_of(model)
    assert global_seed_state() is None
    random.seed(1)
    expected = random.random()
    random.seed(1)
    assert not any("global_seed" in name for name in state.capture_local())
    state.restore(state.capture())
    assert global_seed_state() is None
    assert random.random() == expected, "looking drew a number"
    keras.random.uniform((2,))
    _, local = taken(state)
    assert any("global_seed" in name for name in local)
    drawn = np.array(keras.random.uniform((5,)))
    state.restore(WorkerValues(local=local))
    np.testing.assert_array_equal(np.array(keras.random.uniform((5,))), drawn)
