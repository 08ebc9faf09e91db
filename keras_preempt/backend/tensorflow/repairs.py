"""Repairs of what keeps Keras' `fit` from working under several workers or several replicas.

Keras 3's TensorFlow trainer is tested on one worker only. Five defects stop it on more: the first two with several
workers, the third with mirrored replicas, even a single one, the others with several of them. Each `Repair` detects its
defect without running an operation, and wraps the function so that all other models get Keras' own behaviour.

Verified with Keras 3.8.0 to 3.15.1; comments say where older ones differ.
`tests/backend/tensorflow/test_repairs_canaries.py` has one test for each private name. Importing this module runs no
operation: `MultiWorkerMirroredStrategy` must be made before the first one.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

import keras
import tensorflow as tf

from keras_preempt.backend.bytecode import within
from keras_preempt.backend.keras.names import STEPS_AT_FIRST, KerasInternalsError, PrivateName, reads
from keras_preempt.backend.tensorflow import replica_branches
from keras_preempt.backend.tensorflow.replica_branches import has_several_mirrored_replicas

_TRAINER = "keras.src.backend.tensorflow.trainer"

SYMBOLIC_BUILD = PrivateName(
    _TRAINER, "TensorFlowTrainer._maybe_symbolic_build", ("self", "iterator", "data_batch")
)
REDUCE_PER_REPLICA = PrivateName(_TRAINER, "reduce_per_replica", ("values", "strategy", "reduction"))
MAKE_FUNCTION = PrivateName(_TRAINER, "TensorFlowTrainer._make_function", ("self", "step_function"))
WITHOUT_OPTIONALS = PrivateName(
    _TRAINER, "TensorFlowTrainer._autoconvert_optionals", ("self", "step_func"), since="3.12.0"
)
CHECK_FINITE = PrivateName(
    "keras.src.optimizers.loss_scale_optimizer", "LossScaleOptimizer.check_finite", ("self", "grads")
)
APPLY_GRADIENTS = PrivateName(
    "keras.src.optimizers.base_optimizer",
    "BaseOptimizer._backend_apply_gradients",
    ("self", "grads", "trainable_variables"),
)

FUNCTIONS = (
    SYMBOLIC_BUILD,
    REDUCE_PER_REPLICA,
    MAKE_FUNCTION,
    WITHOUT_OPTIONALS,
    CHECK_FINITE,
    APPLY_GRADIENTS,
)
ONE_STEP = "one_step_on_data"
"""What `MAKE_FUNCTION` calls the function that runs one step."""


@dataclass(frozen=True)
class Repair:
    """A defect of Keras, how to detect it and how to wrap the function that has it."""

    defect: str  # What does not work, in a few words.
    target: PrivateName  # The function to replace.
    is_broken: Callable[[Callable[..., Any]], bool]  # Whether it has the defect; runs no operation.
    repaired: Callable[[Callable[..., Any]], Callable[..., Any]]  # Makes the replacement from it.
    concerns: Callable[[Any], bool]  # Whether a compiled model meets the defect.
    uses: tuple[PrivateName, ...] = ()  # Other private names that detection and replacement rely on.

    def needed(self) -> bool:
        """Whether the installed Keras has the defect. Raises KerasInternalsError if a name relied upon has changed."""
        for name in self.uses:
            if name.expected:
                name.find()
        function = self.target.find()
        try:
            return self.is_broken(function)
        except (AttributeError, TypeError) as error:
            raise KerasInternalsError(str(self.target), f"one that works differently ({error})") from error


def _is_clustered(strategy: Any) -> bool:
    """Whether the strategy has replicas in other processes than this one."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return False
    return bool(strategy.num_replicas_in_sync > len(strategy.extended.worker_devices))


class _StandInStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """Looks like a strategy over several workers, without a cluster; records what it has to reduce."""

    worker_devices = ("/device:CPU:0",)
    num_replicas_in_sync = 2
    scope = staticmethod(contextlib.nullcontext)

    def __init__(self) -> None:
        self.reduced: list[tuple[Any, Any]] = []

    @property
    def extended(self) -> Any:
        return self

    def _in_multi_worker_mode(self) -> bool:
        return True

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        return (value,)

    def reduce(self, reduce_op: Any, value: Any, axis: Any) -> Any:
        self.reduced.append((value, axis))
        return value


class _StandInValue(tf.distribute.DistributedValues):
    """Looks like a scalar with a value of its own on each replica."""

    def __init__(self) -> None:
        self.shape = tf.TensorShape([])


def _reduces_nested_values(maybe_symbolic_build: Callable[..., Any]) -> bool:
    trainer = SYMBOLIC_BUILD.owner()()
    trainer._distribute_strategy = strategy = _StandInStrategy()
    trainer._symbolic_build = lambda iterator=None, data_batch=None: None
    batch = (_StandInValue(), _StandInValue())
    maybe_symbolic_build(trainer, iterator=[(*STEPS_AT_FIRST, iter([batch]))])
    return any(isinstance(value, tuple) for value, _ in strategy.reduced)


def _build_from_local_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    """Builds from the first local replica's part of the batch, which has the same structure and types.

    Draws as many batches from as many iterators as Keras does, so that the order of the data stays the same.
    """

    @functools.wraps(original)
    def maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> Any:
        strategy = self._distribute_strategy
        if iterator is None or not _is_clustered(strategy):
            return original(self, iterator=iterator, data_batch=data_batch)
        for *_, batches in iterator:
            data_batch = keras.tree.map_structure(
                lambda value: strategy.experimental_local_results(value)[0], next(batches)
            )
            break
        return original(self, data_batch=data_batch)

    return maybe_symbolic_build


def _averages_along_an_axis(reduce_per_replica: Callable[..., Any]) -> bool:
    strategy = _StandInStrategy()
    reduce_per_replica(_StandInValue(), strategy, "auto")
    return any(axis is not None for _, axis in strategy.reduced)


def _average_across_replicas_only(original: Callable[..., Any]) -> Callable[..., Any]:
    """Averages each log across replicas, element by element, as Keras does when they are in one process.

    Across workers, Keras averages along an axis as well: an error for scalars, and wrong for the rest.
    """

    @functools.wraps(original)
    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        if reduction not in ("auto", "mean") or not _is_clustered(strategy):
            return original(values, strategy, reduction)
        return keras.tree.map_structure(lambda value: mean(value, strategy), values)

    def mean(value: Any, strategy: Any) -> Any:
        # A metric's result may be its variable, and reduce finds no device of a variable.
        variables = (tf.Variable, keras.Variable)
        if any(isinstance(each, variables) for each in strategy.experimental_local_results(value)):
            value = strategy.run(lambda each: tf.identity(keras.ops.convert_to_tensor(each)), args=(value,))
        return strategy.reduce("MEAN", value, axis=None)

    return reduce_per_replica


def _runs_steps_in_branches(make_function: Callable[..., Any]) -> bool:
    # Tracing it would show it for certain, but would also start TensorFlow: read the code instead.
    codes = list(within(make_function.__code__))
    if not any(reads(code, ONE_STEP) for code in codes):
        raise AttributeError(f"it has no local function {ONE_STEP!r}")
    return any(
        reads(branch, ONE_STEP)
        for code in codes
        if "cond" in code.co_names
        for branch in code.co_consts
        if isinstance(branch, CodeType)
    )


def _loops_over_several_replicas(model: Any) -> bool:
    return bool(model.steps_per_execution > 1) and has_several_mirrored_replicas(model.distribute_strategy)


def _loop_without_branches(original: Callable[..., Any]) -> Callable[..., Any]:
    """Runs an execution's steps in `execution_loop` instead of in branches of `tf.cond`."""

    @functools.wraps(original)
    def make_function(self: Any, step_function: Callable[..., Any]) -> Any:
        upstream = original(self, step_function)
        strategy = self.distribute_strategy
        if not _loops_over_several_replicas(self):
            return upstream

        def one_step(data: Any) -> Any:
            # The reduction is looked up when traced, so that its own repair is used.
            return REDUCE_PER_REPLICA.find()(strategy.run(step_function, args=(data,)), strategy, "auto")

        # Keras before 3.12 leaves empty optionals in the data alone.
        convert = self._autoconvert_optionals if WITHOUT_OPTIONALS.expected else lambda step: step
        compiled = functools.partial(tf.function, reduce_retracing=True, autograph=False)
        if self.run_eagerly:
            execution = execution_loop(convert(one_step), self.steps_per_execution)
        else:
            one_step = convert(compiled(one_step, jit_compile=self.jit_compile))
            execution = compiled(execution_loop(one_step, self.steps_per_execution))

        def function(iterator: Any) -> Any:
            if not isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
                return upstream(iterator)  # `train_on_batch`: a plain batch.
            outputs = execution(iterator)
            if not outputs.has_value():
                raise StopIteration
            return outputs.get_value()

        return function

    return make_function


def _agree_on_finite_gradients(original: Callable[..., Any]) -> Callable[..., Any]:
    """Takes a step only if the gradients are finite on every replica.

    Keras asks the first replica of each process, before the gradients are summed. In one process, an overflow on
    another replica then reaches the weights. With several workers, those with finite gradients wait forever for the
    workers that skip the step.
    """

    @functools.wraps(original)
    def check_finite(self: Any, grads: Any) -> Any:
        finite = original(self, grads)
        replica = tf.distribute.get_replica_context()
        if replica is None or not has_several_mirrored_replicas(replica.strategy):
            return finite
        overflows = tf.cast(tf.logical_not(finite), tf.float32)
        return tf.equal(replica.all_reduce(tf.distribute.ReduceOp.SUM, overflows), 0.0)

    return check_finite


def _scales_the_loss_on_several_replicas(model: Any) -> bool:
    scales = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    return scales and has_several_mirrored_replicas(model.distribute_strategy)


REPAIRS = (
    Repair(
        defect="building a model from a batch of several workers",
        target=SYMBOLIC_BUILD,
        is_broken=_reduces_nested_values,
        repaired=_build_from_local_batch,
        concerns=lambda model: _is_clustered(model.distribute_strategy),
    ),
    Repair(
        defect="averaging logs across workers",
        target=REDUCE_PER_REPLICA,
        is_broken=_averages_along_an_axis,
        repaired=_average_across_replicas_only,
        concerns=lambda model: _is_clustered(model.distribute_strategy),
    ),
    Repair(
        defect="gradient accumulation and overwriting weights by their averages under a strategy",
        target=APPLY_GRADIENTS,
        is_broken=replica_branches.branches_in_replicas,
        repaired=replica_branches.branch_together,
        concerns=replica_branches.branches_in_optimizer,
    ),
    Repair(
        defect="several steps per execution on several replicas",
        target=MAKE_FUNCTION,
        uses=(REDUCE_PER_REPLICA, WITHOUT_OPTIONALS),
        is_broken=_runs_steps_in_branches,
        repaired=_loop_without_branches,
        concerns=_loops_over_several_replicas,
    ),
    Repair(
        defect="loss scaling on several replicas, of which only some overflow",
        target=CHECK_FINITE,
        is_broken=lambda check_finite: "all_reduce" not in check_finite.__code__.co_names,
        repaired=_agree_on_finite_gradients,
        concerns=_scales_the_loss_on_several_replicas,
    ),
)


def execution_loop(one_step: Callable[[Any], Any], steps: int) -> Callable[[Any], Any]:
    """Returns a function that runs up to ``steps`` steps on an iterator's batches.

    Every step is in the loop's own body and never in a branch: a mirrored step synchronises its replicas in the outer
    graph, and in a branch of `tf.cond` it would refer to values that the branch is not given ("You must feed a value
    for placeholder tensor", keras issue 19246). The loop's condition asks for data, so no branch is needed. A batch
    that is drawn is always trained on.

    `one_step` runs one step on all replicas with one batch, and returns a structure of tensors. The function takes a
    `tf.distribute.DistributedIterator` and returns a `tf.experimental.Optional` of the last step's outputs, which is
    empty if there was no batch left. It runs eagerly or in a `tf.function`.
    """

    def execution(iterator: Any) -> Any:
        # What a step returns is known only once one is traced, and a loop's variables are fixed before that: the loop
        # carries the outputs as one opaque tensor, and `traced` keeps their structure for afterwards.
        traced: list[Any] = []

        def has_batch(step: Any, outputs: Any, batch: Any) -> Any:
            return tf.logical_and(step < steps, batch.has_value())

        def run_step(step: Any, outputs: Any, batch: Any) -> tuple[Any, Any, Any]:
            result = tf.experimental.Optional.from_value(one_step(batch.get_value()))
            traced[:] = [result]
            (outputs,) = tf.nest.flatten(result, expand_composites=True)
            step += 1
            return step, outputs, tf.cond(step < steps, iterator.get_next_as_optional, lambda: batch)

        first = iterator.get_next_as_optional()
        start = (tf.constant(0), tf.raw_ops.OptionalNone(), first)
        _, outputs, _ = tf.while_loop(has_batch, run_step, start)
        if not traced:
            return first  # Eagerly, and there is no data.
        return tf.nest.pack_sequence_as(traced[0], [outputs], expand_composites=True)

    return execution
