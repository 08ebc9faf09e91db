"""Every private name of Keras that is relied upon still exists and still has the shape relied upon.

A failure here says what a new Keras has changed, before any training does.
"""

from __future__ import annotations

import inspect

import keras
import pytest
import tensorflow as tf

from keras_preempt.backend import requirements
from keras_preempt.backend.keras import model_parts, names
from keras_preempt.backend.keras.names import PrivateName
from keras_preempt.backend.tensorflow import repairs
from tests.backend.changed import keras_changed as _changed

pytestmark = pytest.mark.usefixtures("fresh_keras")

_NAMES = [value for value in vars(repairs).values() if isinstance(value, PrivateName)]


@pytest.mark.parametrize("name", _NAMES, ids=lambda name: name.path)
def test_the_function_exists_and_takes_the_parameters_it_is_given(name: PrivateName) -> None:
    if name.expected:
        name.find()  # its error says what changed
    else:
        with pytest.raises(names.KerasInternalsError):
            name.find()


def test_the_trainer_keeps_its_strategy_in_distribute_strategy() -> None:
    trainer = repairs.SYMBOLIC_BUILD.owner()()
    assert vars(trainer).get("_distribute_strategy", "gone") is None, _changed(
        "TensorFlowTrainer._distribute_strategy is no longer None outside of a strategy's scope"
    )
    trainer._distribute_strategy = marker = object()
    assert trainer.distribute_strategy is marker, _changed(
        "TensorFlowTrainer.distribute_strategy is no longer read from _distribute_strategy"
    )


def test_the_trainer_builds_by_symbolic_build_with_a_batch() -> None:
    build = getattr(repairs.SYMBOLIC_BUILD.owner(), "_symbolic_build", None)
    assert build is not None, _changed("Trainer._symbolic_build is gone")
    parameters = list(inspect.signature(build).parameters)
    assert parameters == ["self", "iterator", "data_batch"], _changed(
        f"Trainer._symbolic_build takes other parameters: {parameters}"
    )


def test_the_repair_of_the_build_can_be_told_from_what_it_reduces() -> None:
    assert isinstance(repairs.REPAIRS[0].needed(), bool)


def test_keras_asks_the_strategy_whether_it_is_in_multi_worker_mode() -> None:
    # The stand-in answers to this name; if Keras asks in another way, the defect goes unseen.
    source = inspect.getsource(inspect.getmodule(repairs.REDUCE_PER_REPLICA.find()))  # type: ignore[arg-type]
    assert "extended._in_multi_worker_mode()" in source, _changed(
        "the trainer no longer asks strategy.extended._in_multi_worker_mode()"
    )


def test_the_function_for_one_step_has_its_name() -> None:
    variables = repairs.MAKE_FUNCTION.find().__code__.co_cellvars
    assert repairs.ONE_STEP in variables, _changed(
        f"TensorFlowTrainer._make_function has no local function {repairs.ONE_STEP}: {variables}"
    )


def test_whether_an_optimizer_branches_in_each_replica_can_be_told() -> None:
    (repair,) = (repair for repair in repairs.REPAIRS if repair.target is repairs.APPLY_GRADIENTS)
    assert isinstance(repair.needed(), bool)


def test_an_optimizer_keeps_what_it_accumulates_in_variables_of_its_own() -> None:
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=2)
    assert model_parts.gradient_accumulators(optimizer) == []
    weight = keras.Variable([1.0, 2.0])
    optimizer.build([weight])
    (accumulator,) = model_parts.gradient_accumulators(optimizer)
    optimizer.apply([keras.ops.convert_to_tensor([3.0, 4.0])])
    assert any(accumulator is variable for variable in optimizer.variables), _changed(
        "BaseOptimizer._accumulated_gradients holds no variables of the optimizer"
    )
    assert accumulator.numpy().tolist() == [3.0, 4.0], _changed(
        "BaseOptimizer._accumulated_gradients no longer holds the sums of gradients"
    )


def test_a_loss_scale_optimizer_names_the_one_that_accumulates() -> None:
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(gradient_accumulation_steps=2))
    optimizer.build([keras.Variable([1.0])])
    assert len(model_parts.gradient_accumulators(optimizer)) == 1, _changed(
        "LossScaleOptimizer.inner_optimizer is no longer the optimizer that accumulates"
    )


def test_tensorflow_says_whether_replicas_meet_by_merge_call() -> None:
    interim = getattr(tf.__internal__.distribute, "strategy_supports_no_merge_call", None)
    assert interim is not None, _changed("tf.__internal__.distribute.strategy_supports_no_merge_call is gone")
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        assert interim() is False


@pytest.mark.parametrize("method", ["fit", "evaluate", "train_on_batch", "test_on_batch"])
def test_the_guarded_methods_are_inherited_by_model(method: str) -> None:
    assert callable(getattr(keras.Model, method, None)), _changed(f"keras.Model.{method} is gone")


def test_all_layers_inside_a_model_are_listed_without_it() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert model not in model._flatten_layers(include_self=False), _changed(
        "Layer._flatten_layers lists the layer itself"
    )


def test_a_variable_is_read_and_assigned_by_what_its_class_has() -> None:
    assert isinstance(keras.Variable.value, property), _changed("Variable.value is no property any more")
    assert inspect.isfunction(keras.Variable.assign), _changed("Variable.assign is no method any more")
    assert keras.Variable(1.0)._value is not None, _changed(
        "a variable no longer keeps its tf.Variable in _value"
    )


def test_scopes_of_variables_are_where_they_are_looked_for() -> None:
    from keras.src.backend.common.stateless_scope import in_stateless_scope
    from keras.src.backend.common.variables import AutocastScope

    with keras.StatelessScope():
        assert in_stateless_scope(), _changed("in_stateless_scope no longer tells of a StatelessScope")
    with AutocastScope("float16"), AutocastScope(None):
        assert keras.Variable(1.0).value.dtype == "float32", _changed(
            "AutocastScope(None) no longer ends another"
        )


def test_the_locals_of_fit_that_hold_logs_have_their_names() -> None:
    assert requirements.changed_names() == []
