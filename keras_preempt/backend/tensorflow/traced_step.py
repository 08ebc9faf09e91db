"""The training step of a fit, traced before its first step by Keras' own function.

On one device Keras makes optimizer slots, compiled metrics and layers that are built late only when it traces the
first step. A restore needs them earlier. Tracing early makes exactly what training makes, runs nothing and draws no
data. The first step uses that trace.

Verified with Keras 3.8.0 to 3.15.1.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_preempt.backend.keras.model_parts import first_reset_left_out
from keras_preempt.backend.keras.random_code import may_draw
from keras_preempt.backend.keras.running_fit import TracedStep
from keras_preempt.backend.operations import Does, RandomOperation
from keras_preempt.backend.tensorflow import random_operations
from keras_preempt.backend.tensorflow.graph_operations import attribute_of, line_of, operations, resource_of

logger = logging.getLogger("keras_preempt")

STEPS = ("multi_step_on_iterator", "execution")
"""What Keras and the repaired loop over several replicas call the `tf.function` in the train function."""

_KEPT = (
    "_input_workers",
    "_element_spec",
    "_strategy",
    "_options",
    "_cardinality",
    "_enable_get_next_as_optional",
    "_replica_order",
)
"""The attributes that a distributed dataset passes to its iterators, in the order in which their type takes them."""


class TracedFunction(TracedStep):
    """The trace that the first step of a fit uses: a `tf.types.experimental.ConcreteFunction`."""

    def __init__(self, function: Any) -> None:
        self.function = function

    @property
    def variables(self) -> Sequence[Any]:
        """The variables that it uses, each replica's own, by first use; the trace keeps none of them alive."""
        # TensorFlow keeps them in a set, in another order in every process. `captured_inputs` would call what is
        # captured late, which draws the next keys of collectives: if one worker looks at more traces than the others,
        # all of them wait forever.
        captured = self.function.graph.external_captures
        first_use = {id(handle): number for number, handle in enumerate(captured)}
        return sorted(
            self.function.graph.variables, key=lambda each: first_use.get(id(each.handle), len(first_use))
        )

    @property
    def changed_variables(self) -> Sequence[Any]:
        """The variables that the step writes; all that it uses if it is unknown what an operation writes."""
        changed = [
            resource_of(each)
            for each in operations(self.function.graph)
            if random_operations.changes_variable(each.type)
        ]
        if any(resource is None for resource in changed):
            return self.variables
        handles = set(map(id, changed))
        return [variable for variable in self.variables if id(variable.handle) in handles]

    def random_operations(self) -> list[RandomOperation]:
        """See `TracedStep.random_operations`.

        `keras.random` with a `SeedGenerator` is not among them, since its state is a variable of the model; nor is
        `tf.random.stateless_*`.
        """
        found = []
        for operation in operations(self.function.graph):
            attribute = functools.partial(attribute_of, operation)
            does = random_operations.does(operation.type, attribute)
            if does not in (Does.DRAW, Does.GENERATE, Does.PYTHON):
                continue
            seeds = (attribute("seed"), attribute("seed2"))
            found.append(
                RandomOperation(
                    operation.type,
                    line_of(operation) or f"the layers {operation.name.rpartition('/')[0]}",
                    does is Does.GENERATE or (does is Does.DRAW and any(seeds)),
                    resource_of(operation) if does is Does.GENERATE else None,
                )
            )
        return found


def trace(model: Any, dataset: Any, *, early: bool = True, again: bool = False) -> TracedFunction | None:
    """Traces the training step of a running fit, as its first step would; see `seam.Backend.trace`.

    None if it must wait, or if the model trains eagerly, has a train function of its own, or cannot be traced: then the
    first step raises Keras' own error. With `again`, the first step traces once more: a trace keeps the Python values
    that it has read, and callbacks may set some before the first step.
    """
    function = _step_of(model.train_function)
    if function is None or model.run_eagerly or tf.config.functions_run_eagerly():
        return None
    spec = iterator_spec(dataset)
    if spec is None:
        return None
    traces = function.experimental_get_tracing_count()
    if not early and not traces:
        return None
    try:
        with first_reset_left_out(model):
            concrete = function.get_concrete_function(spec)
        if again and function.experimental_get_tracing_count() > traces:
            model.make_train_function(force=True)
        return TracedFunction(concrete)
    except Exception as error:  # Whatever the user's code raises: the first step raises it again.
        logger.debug("The training step could not be traced before training: %r", error)
        return None


def traced_validation(model: Any, dataset: Any) -> TracedFunction | None:
    """Returns the trace that the validation steps of a running fit have used; None if there is none."""
    function, spec = _step_of(getattr(model, "test_function", None)), iterator_spec(dataset)
    if function is None or spec is None or tf.config.functions_run_eagerly():
        return None
    if not function.experimental_get_tracing_count():
        return None
    return TracedFunction(function.get_concrete_function(spec))


def validation_may_draw(model: Any) -> bool:
    """Whether the model has a `test_step` of its own whose code refers to random numbers outside of Keras."""
    return may_draw(type(model).test_step, type(model))


def _step_of(train_function: Any) -> Any:
    """Returns the `tf.function` that a train function calls with an iterator; None if there is none."""
    if isinstance(train_function, tf.types.experimental.PolymorphicFunction):
        return train_function
    code, cells = getattr(train_function, "__code__", None), getattr(train_function, "__closure__", None)
    if code is None or cells is None:
        return None
    within = dict(zip(code.co_freevars, cells, strict=True))
    for name in STEPS:
        try:
            found = within[name].cell_contents
        except (KeyError, ValueError):
            continue
        if isinstance(found, tf.types.experimental.PolymorphicFunction):
            return found
    return None


def iterator_spec(dataset: Any) -> tf.TypeSpec | None:
    """Returns the type of the iterators that `iter(dataset)` makes, without making one.

    Each iterator that is made advances the reshuffling of its dataset, so making one for its type would change the
    data. None for anything but a `tf.data.Dataset` or a dataset that a strategy of the known releases distributes.
    """
    if isinstance(dataset, tf.data.Dataset):
        return tf.data.IteratorSpec(dataset.element_spec)
    try:
        from tensorflow.python.distribute import input_lib
    except ImportError:
        return None
    kind = getattr(input_lib, "DistributedIteratorSpec", None)
    if kind is None or not all(hasattr(dataset, name) for name in _KEPT):
        return None
    return kind(*(getattr(dataset, name) for name in _KEPT))
