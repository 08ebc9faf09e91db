"""The trace made as training begins is the one that the first step uses, and names what draws from hidden states."""

from __future__ import annotations

import functools
import gc
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_preempt.backend.keras.model_parts import own_optimizers, own_steps, steps_done
from keras_preempt.backend.tensorflow import repairs
from keras_preempt.backend.tensorflow.backend import BACKEND
from keras_preempt.backend.tensorflow.traced_step import (
    STEPS,
    TracedFunction,
    trace,
)
from keras_preempt.state.model import ModelState
from tests.fits import untuned

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4)
DATA = untuned(tf.data.Dataset.from_tensor_slices(X).batch(4))
PAIRS = untuned(tf.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(4))
GLOBAL = tf.random.Generator.from_seed(3)


class Model(keras.Model):
    """Makes its layer and the slots of its optimizer in the first step."""

    def __init__(self, noise: Callable[[Any, Any], Any] = lambda self, x: x) -> None:
        super().__init__()
        self.layer = keras.layers.Dense(1)
        self.other = keras.optimizers.Adam()
        self.generator = tf.random.Generator.from_seed(4)
        self.noise = noise
        self.traces = [0]
        self.factor = 1.0

    def call(self, x: Any) -> Any:
        return self.layer(x)

    def train_step(self, data: Any) -> Any:
        self.traces[0] += 1
        with tf.GradientTape() as tape:
            loss = self.factor * tf.reduce_mean(self.layer(self.noise(self, data)) ** 2)
        variables = self.layer.trainable_variables
        self.other.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


@pytest.fixture(autouse=True)
def _no_global_seed() -> None:
    """With one, an operation has a seed although nobody gives it one."""
    tf.random.set_seed(None)


def _fit(model: Any, look: Callable[[Any, Any], Any], data: Any = DATA, epochs: int = 1) -> tuple[Any, Any]:
    """Fits; returns the history, and what a function of the model and its data has returned as training began."""
    found: list[Any] = []
    begin = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: found.append(look(model, BACKEND.running_fit(model).feed.dataset))
    )
    history = model.fit(data, verbose=0, epochs=epochs, shuffle=False, callbacks=[begin])
    return history.history, found[0]


def _traced(model: Any, data: Any = DATA, **arguments: Any) -> Any:
    """The trace that is made at the start of a fit of two epochs."""
    model.compile(**arguments)
    return _fit(model, trace, data, epochs=2)[1]


@pytest.mark.usefixtures("fresh_keras")
def test_keras_calls_the_function_of_a_step_as_it_is_looked_for() -> None:
    names = repairs.MAKE_FUNCTION.find().__code__.co_cellvars
    assert STEPS[0] in names, f"_make_function has no local function {STEPS[0]!r} any more: {names}"


WAYS = [{}, {"steps_per_execution": 2}, {"jit_compile": True}]
EACH_ONCE = list(zip(["dataset", "unknown length", "arrays"], WAYS, strict=True))


@pytest.mark.parametrize(
    ("data", "arguments"),
    [
        pytest.param(*each, marks=() if each in EACH_ONCE else pytest.mark.chaos)
        for each in itertools.product(["dataset", "unknown length", "arrays"], WAYS)
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_the_first_step_uses_the_trace(arguments: dict[str, Any], data: str) -> None:
    inputs = {"dataset": DATA, "unknown length": DATA.filter(lambda x: True), "arrays": X}[data]
    plain = Model()
    plain.compile(**arguments)
    plain.fit(inputs, verbose=0, epochs=2, shuffle=False)
    model = Model()
    assert isinstance(_traced(model, inputs, **arguments), TracedFunction)
    assert model.traces == plain.traces, "the step was traced more often than without us"


def test_tracing_makes_what_training_makes_and_runs_nothing() -> None:
    def look(model: Any, data: Any) -> None:
        assert not model.layer.built
        assert not model.other.built
        assert trace(model, data) is not None
        assert len([value.numpy() for value in model.layer.variables]) == 2
        assert len(model.other.variables) == 6
        assert steps_done(model) == 0, "tracing has run a step"
        state = tf.random.Generator.from_seed(4).state.numpy()
        assert (model.generator.state.numpy() == state).all(), "tracing has drawn"

    model = Model(lambda self, x: x + self.generator.normal(tf.shape(x)))
    model.compile()
    _fit(model, look)
    assert steps_done(model) == 4


def test_what_trains_eagerly_is_not_traced() -> None:
    assert _traced(Model(), run_eagerly=True) is None
    tf.config.run_functions_eagerly(True)
    try:
        assert _traced(Model()) is None
    finally:
        tf.config.run_functions_eagerly(False)


def test_a_step_that_cannot_be_traced_fails_in_the_first_step_in_its_own_words() -> None:
    def fail(self: Any, x: Any) -> Any:
        raise ArithmeticError("of the user's own")

    with pytest.raises(ArithmeticError, match="of the user's own"):
        _traced(Model(fail))


def test_a_step_that_may_not_be_traced_early_is_looked_at_once_it_has_run() -> None:
    model = Model()
    model.compile()

    def begin(model: Any, data: Any) -> None:
        assert trace(model, data, early=False) is None
        model.factor = 0.0

    history, _ = _fit(model, begin)
    assert history["loss"] == [0.0], "the step has not read what was set before it"
    traces = list(model.traces)
    assert isinstance(_fit(model, functools.partial(trace, early=False))[1], TracedFunction)
    assert model.traces == traces


@pytest.mark.parametrize(
    ("noise", "kind", "seeded"),
    [
        (lambda self, x: x + tf.random.normal(tf.shape(x)), "RandomStandardNormal", False),
        (lambda self, x: x + tf.random.uniform(tf.shape(x), seed=3), "RandomUniform", True),
        (lambda self, x: x + tf.random.truncated_normal(tf.shape(x)), "TruncatedNormal", False),
        (lambda self, x: tf.random.shuffle(x), "RandomShuffle", False),
        (lambda self, x: x * tf.cast(tf.random.categorical(x, 1), x.dtype), "Multinomial", False),
        (
            lambda self, x: tf.ensure_shape(tf.numpy_function(np.copy, [x], x.dtype), (None, 4)),
            "PyFunc",
            False,
        ),
        (
            lambda self, x: tf.ensure_shape(tf.py_function(lambda x: x, [x], x.dtype), (None, 4)),
            "EagerPyFunc",
            False,
        ),
    ],
)
def test_a_stateful_random_operation_is_named_with_the_users_line(
    noise: Any, kind: str, seeded: bool
) -> None:
    (found,) = _traced(Model(noise)).random_operations()
    assert (found.kind, found.seeded, found.resource) == (kind, seeded, None)
    assert "test_traced_step.py" in found.where


def test_operations_of_other_functions_and_branches_are_found() -> None:
    @tf.function
    def shaken(x: Any) -> Any:
        return tf.cond(tf.reduce_any(x > 0), lambda: x + tf.random.normal(tf.shape(x)), lambda: x)

    found = _traced(Model(lambda self, x: shaken(x)), steps_per_execution=2).random_operations()
    assert [operation.kind for operation in found] == ["RandomStandardNormal"]


@pytest.mark.parametrize("own", [True, False])
def test_of_a_generator_it_is_known_whether_its_state_is_saved(own: bool) -> None:
    model = Model(lambda self, x: x + (self.generator if own else GLOBAL).normal(tf.shape(x)))
    (found,) = _traced(model).random_operations()
    assert found.kind == "RngReadAndSkip"
    assert found.resource is not None
    assert ModelState(model, tf.distribute.get_strategy()).holds(found.resource) == own


def test_what_keras_seeds_is_not_named() -> None:
    dropout = keras.layers.Dropout(0.5)
    seed = keras.random.SeedGenerator(3)
    noise = lambda self, x: dropout(x, training=True) + keras.random.normal((4, 4), seed=seed)  # noqa: E731
    assert _traced(Model(noise)).random_operations() == []


def test_optimizers_in_lists_dictionaries_and_inner_models_are_found_and_count() -> None:
    model = Model()
    model.compile("sgd")
    model.listed = [keras.optimizers.Adam()]
    model.named = {"one": keras.optimizers.Adam()}
    model.inner = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="inner")
    model.inner.compile("adam")
    assert set(own_optimizers(model)) == {"other", "listed/0", "named/one"}
    model.inner.optimizer.build(model.inner.trainable_variables)
    assert set(own_optimizers(model)) == {"other", "listed/0", "named/one", "inner/optimizer"}
    model.inner.optimizer.iterations.assign(7)
    assert steps_done(model) == 7
    assert own_steps(model) == 0, "the steps of a part that was trained before are no steps of this fit"
    model.listed[0].iterations.assign(3)
    assert steps_done(model) == 3, "a part that was trained before is counted"


@pytest.mark.parametrize("arguments", [{}, {"steps_per_execution": 2}], ids=str)
def test_what_a_step_changes_and_the_model_does_not_hold_is_saved_in_the_order_of_its_use(
    arguments: dict[str, Any],
) -> None:
    outside = [tf.Variable(float(number), name="same") for number in range(20)]
    constant = tf.Variable(2.0, name="constant")

    def noise(self: Any, x: Any) -> Any:
        for variable in outside:
            variable.assign_add(constant * GLOBAL.normal(()))
        return x * outside[0]

    model = Model(noise)
    traced = _traced(model, **arguments)
    state = ModelState(model, tf.distribute.get_strategy(), used=traced.changed_variables)
    assert all(state.holds(variable.handle) for variable in outside)
    assert not state.holds(constant.handle), "what only is read is not saved"
    assert state.holds(GLOBAL.state.handle)
    assert len([name for name in state.mirrored if name.startswith("step/")]) == 21
    found = [each for each in traced.changed_variables if each.name == "same:0"]
    assert [id(each) for each in found] == [id(each) for each in outside]


class Noisy(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return x + tf.random.normal(tf.shape(x))


class NoisyLoss(keras.Sequential):
    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *rest: Any, **more: Any) -> Any:
        return tf.reduce_mean((y - y_pred) ** 2) * tf.random.uniform(())


class NoisyMetric(keras.metrics.Mean):
    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(y_pred + tf.random.normal(tf.shape(y_pred)))


@pytest.mark.parametrize(
    ("make", "metrics", "where"),
    [
        (lambda: keras.Sequential([Noisy(name="noisy"), keras.layers.Dense(1)]), [], "call"),
        (lambda: NoisyLoss([keras.layers.Dense(1)]), [], "compute_loss"),
        (lambda: keras.Sequential([keras.layers.Dense(1)]), [NoisyMetric()], "update_state"),
    ],
    ids=["layer", "loss", "metric"],
)
def test_a_random_operation_is_found_wherever_keras_calls_it(make: Any, metrics: Any, where: str) -> None:
    traced = _traced(make(), PAIRS, optimizer="sgd", loss="mse", metrics=metrics)
    (found,) = traced.random_operations()
    assert found.where.startswith(f"{where} (test_traced_step.py:")


def test_a_random_operation_of_a_library_is_named_by_its_layers() -> None:
    library: dict[str, Any] = {"keras": keras, "tf": tf}
    source = (
        "class Noisy(keras.layers.Layer):\n  def call(self, x):\n    return x + tf.random.normal(tf.shape(x))"
    )
    exec(compile(source, "<of a library>", "exec"), library)
    model = keras.Sequential([library["Noisy"](name="noisy"), keras.layers.Dense(1)], name="whole")
    (found,) = _traced(model, PAIRS, optimizer="sgd", loss="mse").random_operations()
    assert found.where.startswith("the layers ")
    assert "whole_1/noisy_1" in found.where


def test_looking_at_a_trace_computes_nothing_that_is_captured_late() -> None:
    """What collectives capture is the key of the next one: drawn on one worker only, the others wait forever."""
    drawn: list[int] = []
    first, second = tf.Variable(1.0), tf.Variable(2.0)

    def key() -> tf.Tensor:
        drawn.append(1)
        return tf.constant(1.0)

    @tf.function
    def step() -> tf.Tensor:
        graph = tf.compat.v1.get_default_graph()
        return graph.capture_call_time_value(key, tf.TensorSpec([])) + second + first

    concrete = step.get_concrete_function()
    drawn.clear()
    looked = TracedFunction(concrete)
    assert [each is one for each, one in zip(looked.variables, (second, first), strict=True)] == [True, True]
    assert looked.changed_variables == []
    assert drawn == []


def test_a_trace_keeps_no_variable_alive_and_needs_those_that_are_gone_for_nothing_else() -> None:
    used = [tf.Variable(1.0)]

    @tf.function
    def step() -> tf.Tensor:
        return used[0] + 1.0

    looked = TracedFunction(step.get_concrete_function())
    assert [each is used[0] for each in looked.variables] == [True]
    gone = weakref.ref(used[0])
    used.clear()
    gc.collect()
    assert gone() is None
    assert TracedFunction(looked.function).random_operations() == []
