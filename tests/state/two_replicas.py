"""A process with two devices: what two replicas hold of a model, and whether both get the weights of a run."""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

import keras_preempt
from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.state.model import ModelState
from tests.state.test_model import assert_same_bits, taken, trained
from tests.state.test_weights import make_model


def check_what_each_keeps(strategy: Any) -> None:
    with strategy.scope():
        model = trained(renumber=False)
    state = ModelState(model, strategy)
    mirrored, local = taken(state)
    assert not any("@" in name for name in mirrored)
    for part in ("kernel", "momentum", "velocity", "iteration"):
        assert any(part in name for name in mirrored), part
    for part in ("moving_mean", "moving_variance", "seed_generator", "metrics/"):
        assert any(part in name for name in local), part
        assert not any(part in name for name in mirrored), part
    names = {name.rpartition("@")[0] for name in local}
    assert {f"{name}@{replica}" for name in names for replica in (0, 1)} == set(local)
    for part in ("moving_mean", "metrics/"):  # The replicas have seen different halves of each batch.
        assert any((local[f"{name}@0"] != local[f"{name}@1"]).any() for name in names if part in name)
    for variable in [*state.mirrored.values(), *state.local.values()]:
        for value in strategy.experimental_local_results(variable.value):
            value.assign(tf.ones_like(value))
    state.restore(WorkerValues(mirrored, local))
    assert_same_bits((mirrored, local), taken(state))
    for name, variable in state.mirrored.items():  # Of every replica, not the first one only.
        for value in strategy.experimental_local_results(variable.value):
            assert value.numpy().tobytes() == mirrored[name].tobytes(), name
    changed = state.capture_changed_by_validation(weights=False)
    assert changed.local
    assert changed.whole == {}
    assert changed.local.keys() <= local.keys()


def print_loaded_weights(strategy: Any, directory: str) -> None:
    with strategy.scope():
        model = make_model()
        keras_preempt.load_weights(model, directory)
    for weight in model.weights:
        values = strategy.experimental_local_results(weight.value)
        print(*(one.numpy().tobytes().hex() for one in values))


if __name__ == "__main__":
    devices = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    both = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    print_loaded_weights(both, sys.argv[1])
    check_what_each_keeps(both)
