"""One execution of ``steps_per_execution`` training steps on several replicas, as one loop in one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def execution_loop(one_step: Callable[[Any], Any], steps: int) -> Callable[[Any], Any]:
    """Returns a function that runs up to ``steps`` steps on an iterator's batches.

    Every step stands in the loop's own body and never in a branch: a mirrored step synchronises its replicas
    in the outer graph, and from within a branch of ``tf.cond`` it then refers to values that the branch is
    never given ("You must feed a value for placeholder tensor", keras issue 19246). The loop's condition asks
    for data already, so that no branch is needed. A batch that is taken is always trained on.

    Args:
        one_step: Runs one step on all replicas with one batch; returns a structure of tensors.
        steps: The most steps to run, at least 1.

    Returns:
        A function from a ``tf.distribute.DistributedIterator`` to a ``tf.experimental.Optional`` of the last
        step's outputs, which is empty if there was no batch left. Runs eagerly or within a ``tf.function``.
    """

    def execution(iterator: Any) -> Any:
        # What a step returns is known only once one is traced, and a loop's variables are fixed before that:
        # the loop carries the outputs as one opaque tensor, and `traced` keeps their structure for
        # afterwards.
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
            return first  # eagerly, and there is no data
        return tf.nest.pack_sequence_as(traced[0], [outputs], expand_composites=True)

    return execution
