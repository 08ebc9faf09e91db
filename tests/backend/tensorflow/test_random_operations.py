"""The list of random operations covers all that the installed TensorFlow has registered."""

from __future__ import annotations

import re

import pytest
import tensorflow as tf

from keras_preempt.backend.operations import Does
from keras_preempt.backend.tensorflow import random_operations

_SOUNDS_RANDOM = re.compile(
    r"Random|Rng|Sampl|NonDeterministic|Shuffle|Multinomial|Stateful(?!PartitionedCall)"
)


def _registered() -> dict[str, set[str]]:
    """All registered operations, each with the seeds that it takes."""
    from tensorflow.python.framework import op_def_registry

    found = {}
    for name in dir(tf.raw_ops):
        if (definition := op_def_registry.get(name)) is not None:
            names = {each.name for each in (*definition.attr, *definition.input_arg)}
            found[name] = {each for each in names if each in ("seed", "seed2", "seed_generator")}
            found[name] |= {each for each in names if each.endswith("random_seed")}
    return found


REGISTERED = _registered()


def test_it_is_decided_of_every_operation_with_a_seed_whether_a_restart_loses_its_state() -> None:
    assert len(REGISTERED) > 1000
    asked = [name for name, seeds in REGISTERED.items() if seeds or _SOUNDS_RANDOM.search(name)]
    unknown = [name for name in asked if not random_operations.is_known(name)]
    assert unknown == [], "this TensorFlow has other random operations: put each into random_operations.py"
    assert len(asked) > 60


def test_every_operation_of_the_list_is_one_of_tensorflow() -> None:
    harmless = {name for names in random_operations.NO_DOUBT.values() for name in names}
    classes = {"LegacySnapshotDataset"}
    listed = {
        *random_operations.DRAWS,
        *random_operations.GENERATOR,
        *random_operations.UNLESS,
        *harmless,
    } - classes
    assert sorted(listed - REGISTERED.keys()) == []
    without_version = {random_operations.without_version(name) for name in REGISTERED}
    assert without_version >= random_operations.GIVES_ORDER
    assert not harmless & (random_operations.DRAWS | random_operations.GENERATOR)


@pytest.mark.parametrize(
    ("operation", "attributes", "does"),
    [
        ("RandomShuffle", {}, Does.DRAW),
        ("ShuffleDatasetV3", {}, Does.ORDER),
        ("FractionalMaxPool", {"deterministic": True}, None),
        ("FractionalMaxPool", {"deterministic": False}, Does.DRAW),
        ("CudnnRNNV3", {"dropout": 0.0}, None),
        ("CudnnRNNV3", {"dropout": 0.5}, Does.DRAW),
        ("RngReadAndSkip", {}, Does.GENERATE),
        ("StatefulPartitionedCall", {}, None),
        ("StatelessRandomUniformV2", {}, None),
        ("EagerPyFunc", {}, Does.PYTHON),
        ("AssignAddVariableOp", {}, Does.CHANGE),
        ("LookupTableInsertV2", {}, Does.CHANGE),
        ("MatMul", {}, None),
    ],
)
def test_what_an_operation_does(operation: str, attributes: dict[str, object], does: Does | None) -> None:
    assert random_operations.does(operation, attributes.get) is does


def test_which_operations_change_the_variable_that_they_name() -> None:
    changing = [name for name in sorted(REGISTERED) if random_operations.changes_variable(name)]
    assert {"AssignVariableOp", "ResourceApplyAdam", "RngSkip", "StatefulUniformFullInt"} <= set(changing)
    assert not {"LookupTableInsertV2", "ReadVariableOp"} & set(changing)
