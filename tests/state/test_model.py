from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_preempt.state.model import SMALL, ModelState

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4)
Y = X.sum(axis=1, keepdims=True)


def trained(steps: int = 2, seed: int = 0, *, renumber: bool = True) -> keras.Model:
    if renumber:  # layers from the start, as in a new process
        keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(300),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5, seed=seed),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    model.fit(X, Y, batch_size=8, epochs=steps // 2, verbose=0)
    return model


@pytest.fixture(scope="module")
def model() -> keras.Model:
    return trained()


def state_of(model: keras.Model) -> ModelState:
    return ModelState(model, tf.distribute.get_strategy())


def test_every_variable_of_training_is_captured_once(model: keras.Model) -> None:
    state = state_of(model)
    captured = {**state.capture_mirrored(state.mirrored), **state.capture_local()}
    wanted = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    assert len({id(variable) for variable in wanted}) == len(state.mirrored)
    for part in (
        "seed_generator",
        "moving_mean",
        "momentum",
        "velocity",
        "iteration",
        "learning_rate",
        "metrics/",
    ):
        assert any(part in name for name in captured), part


def test_what_was_captured_brings_another_model_to_the_same_bits(model: keras.Model) -> None:
    state = state_of(model)
    mirrored, local = state.capture_mirrored(state.mirrored), state.capture_local()
    other = trained(steps=4, seed=9)
    state_of(other).restore(mirrored, local)
    after = state_of(other)
    for before, now in ((mirrored, after.capture_mirrored(after.mirrored)), (local, after.capture_local())):
        assert before.keys() == now.keys()
        for name, value in before.items():
            assert value.dtype == now[name].dtype, name
            assert value.tobytes() == now[name].tobytes(), name


def test_restored_models_go_on_to_the_same_bits() -> None:
    first = trained()
    state = state_of(first)
    mirrored = {name: np.array(value) for name, value in state.capture_mirrored(state.mirrored).items()}
    local = {name: np.array(value) for name, value in state.capture_local().items()}
    first.fit(X, Y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    other = trained(steps=4, seed=9)
    state_of(other).restore(mirrored, local)
    other.fit(X, Y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    for one, two in zip(first.variables, other.variables, strict=True):
        assert one.numpy().tobytes() == two.numpy().tobytes(), one.path


def test_what_is_not_in_the_checkpoint_is_left_alone_and_what_is_not_in_the_model_waits(
    model: keras.Model,
) -> None:
    state = state_of(model)
    before = {name: np.array(value) for name, value in state.capture_mirrored(state.mirrored).items()}
    state.restore({}, {})
    state.restore({"model/no such variable": np.zeros(1)}, {"model/neither@0": np.zeros(1)})
    for name, value in before.items():
        np.testing.assert_array_equal(state.capture_mirrored([name])[name], value)
    assert state.waiting == ["model/no such variable", "model/neither"]
    state.wait_no_more()


def test_layers_of_one_name_keep_their_values_apart() -> None:
    keras.utils.set_random_seed(1)
    inner = [
        keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, name="same")], name="same")
        for _ in range(2)
    ]

    class Both(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = inner

        def call(self, x: Any) -> Any:
            return self.one(x) + self.other(x)

    model = Both()
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 2)), np.ones((4, 2)), verbose=0)
    state = state_of(model)
    values = {name: np.array(value) for name, value in state.capture_mirrored(state.mirrored).items()}
    kernels = [value for name, value in values.items() if "kernel" in name]
    assert len(kernels) == 2
    assert not np.array_equal(kernels[0], kernels[1])
    for variable in model.variables:
        variable.assign(np.zeros(variable.shape, variable.dtype))
    state.restore(values, {})
    for layer, kernel in zip(inner, kernels, strict=True):
        np.testing.assert_array_equal(layer.variables[0].numpy(), kernel)


def test_two_runs_of_one_program_name_their_variables_alike() -> None:
    assert state_of(trained(seed=1)).signature() == state_of(trained(seed=2)).signature()


def test_only_what_is_asked_for_is_copied_from_the_device(model: keras.Model) -> None:
    state = state_of(model)
    name = next(iter(state.mirrored))
    assert list(state.capture_mirrored([name])) == [name]


def test_a_change_of_the_model_shows_in_its_signature(model: keras.Model) -> None:
    signature = state_of(model).signature()
    assert {"name", "shape", "dtype"} == set(signature[0])
    assert json.loads(json.dumps(signature)) == signature
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    other.compile("adam", "mse")
    other.fit(X, Y, verbose=0)
    assert state_of(other).signature() != signature


def test_what_a_validation_changes_is_captured_as_a_copy(model: keras.Model) -> None:
    state = state_of(model)
    captured = state.capture_changed_by_validation()
    kept = {name: np.array(value) for name, value in captured.items()}
    assert any("metrics/" in name for name in captured)
    assert any("seed_generator" in name for name in captured)
    assert not any("kernel" in name for name in captured)
    every = {**state.capture_mirrored(state.mirrored), **state.capture_local()}
    assert captured.keys() <= every.keys()  # the same names, to be written in their place
    for variable in model.metrics_variables:
        variable.assign(np.full(variable.shape, 7, variable.dtype))
    for name, value in captured.items():
        np.testing.assert_array_equal(value, kept[name])


def test_small_is_what_a_callback_may_touch_before_the_first_step(model: keras.Model) -> None:
    state = state_of(model)
    small = state.small({**state.capture_mirrored(state.mirrored), **state.capture_local()})
    assert any("learning_rate" in name for name in small)
    assert any("metrics/" in name for name in small)
    assert any("seed_generator" in name for name in small)
    assert not any(value.nbytes > SMALL and "metrics" not in name for name, value in small.items())
    assert any(value.nbytes > SMALL for value in state.capture_mirrored(state.mirrored).values())


def run(program: str) -> str:
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_NUM_INTRAOP_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_global_seed_is_restored_and_made_only_where_the_checkpoint_has_one() -> None:
    program = """
from tests.state.test_model import *
from keras_preempt.backend.keras.model_parts import global_seed_state
import random
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
model.compile("sgd", "mse")
model.fit(X, Y, verbose=0, shuffle=False)
state = state_of(model)
assert global_seed_state() is None
random.seed(1)
expected = random.random()
random.seed(1)
assert not any("global_seed" in name for name in state.capture_local())
state.restore(state.capture_mirrored(state.mirrored), state.capture_local())
assert global_seed_state() is None
assert random.random() == expected, "looking drew a number"
keras.random.uniform((2,))
local = {name: np.array(value) for name, value in state.capture_local().items()}
assert any("global_seed" in name for name in local)
drawn = np.array(keras.random.uniform((5,)))
state.restore({}, local)
np.testing.assert_array_equal(np.array(keras.random.uniform((5,))), drawn)
"""
    run(program)


def test_each_replica_of_a_mirrored_strategy_keeps_its_own_values() -> None:
    program = """
from tests.state.test_model import *
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
with strategy.scope():
    model = trained(renumber=False)
state = ModelState(model, strategy)
mirrored, local = state.capture_mirrored(state.mirrored), state.capture_local()
assert not any("@" in name for name in mirrored)
for part in ("kernel", "momentum", "velocity", "iteration"):
    assert any(part in name for name in mirrored), part
for part in ("moving_mean", "moving_variance", "seed_generator", "metrics/"):
    assert any(part in name for name in local), part
    assert not any(part in name for name in mirrored), part
names = {name.rpartition("@")[0] for name in local}
assert {f"{name}@{replica}" for name in names for replica in (0, 1)} == set(local)
# The replicas have seen different halves of each batch.
assert any((local[f"{name}@0"] != local[f"{name}@1"]).any() for name in names if "moving_mean" in name)
assert any((local[f"{name}@0"] != local[f"{name}@1"]).any() for name in names if "metrics/" in name)
mirrored, local = ({n: np.array(v) for n, v in values.items()} for values in (mirrored, local))
for variable in [*state.mirrored.values(), *state.local.values()]:
    for part in strategy.experimental_local_results(variable.value):
        part.assign(tf.ones_like(part))
state.restore(mirrored, local)
for before, after in ((mirrored, state.capture_mirrored(state.mirrored)), (local, state.capture_local())):
    assert before.keys() == after.keys()
    for name in before:
        assert before[name].tobytes() == after[name].tobytes(), name
# Every replica has the mirrored values, not the first one only.
for name, variable in state.mirrored.items():
    for part in strategy.experimental_local_results(variable.value):
        assert part.numpy().tobytes() == mirrored[name].tobytes(), name
changed = state.capture_changed_by_validation()
assert changed and changed.keys() <= local.keys()
"""
    run(program)
