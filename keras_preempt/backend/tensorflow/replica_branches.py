"""Branches of an optimizer in which replicas meet: gradient accumulation and overwriting weights by their averages.

Keras decides in each replica whether this step updates the weights (`gradient_accumulation_steps`), and whether it
overwrites them with their moving averages (`ema_overwrite_frequency`), and does so in a branch of `tf.cond`. Under
MirroredStrategy and MultiWorkerMirroredStrategy that branch is a graph of one replica's own, in which it cannot meet
the others: TensorFlow raises "merge_call called while defining a new graph or a tf.function". Here the replicas meet
first and branch together, as Keras' LossScaleOptimizer does. The code that runs is Keras' own, with another `cond`.

Each replica accumulates the gradients of its own samples, and only the sums of an update are added up across replicas.
So each replica has accumulators of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from keras_preempt.backend.bytecode import within

_NAMESPACE, _BRANCH = "ops", "cond"
"""How Keras branches: with an attribute of a global name of the module."""

_MEETINGS = {"merge_call", "maybe_merge_call"}


def is_mirrored(strategy: Any) -> bool:
    """Whether each replica of the strategy is a thread that holds its own copy of every variable.

    Other strategies (TPUStrategy above all) run their replicas in another way and are left to Keras.
    """
    return isinstance(strategy, (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy))


def has_several_mirrored_replicas(strategy: Any) -> bool:
    return is_mirrored(strategy) and bool(strategy.num_replicas_in_sync > 1)


def branches_in_replicas(apply_gradients: Callable[..., Any]) -> bool:
    """Whether each replica branches on its own, judged by the code of `BaseOptimizer._backend_apply_gradients`.

    Raises AttributeError if it branches in an unknown way.
    """
    name = apply_gradients.__name__
    first = next(kind for kind in keras.optimizers.Optimizer.__mro__ if name in vars(kind))
    if first.__module__ != apply_gradients.__module__:
        return False  # The optimizers of this backend, such as JAX', override it.
    used = {used for code in within(apply_gradients.__code__) for used in code.co_names}
    if _BRANCH not in used or used & _MEETINGS:
        return False
    if _NAMESPACE not in used or not hasattr(apply_gradients.__globals__.get(_NAMESPACE), _BRANCH):
        raise AttributeError(f"it does not branch by {_NAMESPACE}.{_BRANCH}")
    return True


def branch_together(original: Callable[..., Any]) -> Callable[..., Any]:
    """Applies gradients with branches that all replicas enter together."""

    @functools.wraps(original)
    def apply_gradients(self: Any, grads: Any, trainable_variables: Any) -> Any:
        replica = tf.distribute.get_replica_context()
        # Whether this replica can meet the others in its graph, but not in a graph within that.
        meets_outside = (
            replica is not None
            and is_mirrored(replica.strategy)
            and not tf.executing_eagerly()
            and not tf.__internal__.distribute.strategy_supports_no_merge_call()
        )
        if not _branches(self) or not meets_outside:
            return original(self, grads, trainable_variables)
        known: dict[str, Any] = original.__globals__
        namespace = SimpleNamespace(**{**vars(known[_NAMESPACE]), _BRANCH: _cond_of_all_replicas})
        with_other_branches = FunctionType(
            original.__code__,
            {**known, _NAMESPACE: namespace},
            original.__name__,
            original.__defaults__,
            original.__closure__,
        )
        return with_other_branches(self, grads, trainable_variables)

    return apply_gradients


def branches_in_optimizer(model: Any) -> bool:
    """Whether the optimizer of a compiled model branches under a strategy where it must not."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    return optimizer is not None and is_mirrored(model.distribute_strategy) and _branches(optimizer)


def _branches(optimizer: Any) -> bool:
    overwrites = optimizer.use_ema and optimizer.ema_overwrite_frequency
    return bool(optimizer.gradient_accumulation_steps or overwrites)


def _cond_of_all_replicas(condition: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> None:
    """Calls one of two functions in every replica, in a branch that all of them enter."""

    def branch(strategy: Any, conditions: Any, true_fns: Any, false_fns: Any) -> None:
        def call(function: Callable[[], Any]) -> None:
            function()

        def in_each(functions: Any) -> None:
            strategy.extended.call_for_each_replica(call, args=(functions,))

        # Every replica counts the same steps, so the conditions are equal.
        (condition, *_) = strategy.experimental_local_results(conditions)
        tf.cond(condition, lambda: in_each(true_fns), lambda: in_each(false_fns))

    tf.distribute.get_replica_context().merge_call(branch, args=(condition, true_fn, false_fn))
