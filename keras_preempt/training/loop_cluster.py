"""Which worker of which cluster a custom loop runs in, by its cluster resolver."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_preempt.agreement.coordinator import Coordinator, LocalCoordinator
from keras_preempt.backend.tensorflow.place import Place, place, place_in
from keras_preempt.backend.tensorflow.remote_workers import connected
from keras_preempt.backend.tensorflow.service import ServiceCoordinator
from keras_preempt.training import side_by_side


def join(resolver: Any) -> tuple[Place, Coordinator]:
    """Finds this process among the workers.

    Args:
        resolver: The cluster resolver of the strategy; None for that of the strategy in whose scope this is called.

    Raises:
        ValueError: This process is none of the training workers, or their steps cannot be aligned.
        CoordinationLost: TensorFlow's coordination service does not run in this process.
    """
    if resolver is not None and resolver.task_type not in ("chief", "worker") and (workers := connected()):
        return Place(workers=workers), LocalCoordinator()  # Nobody but this process runs the loop.
    if resolver is not None and "ps" in resolver.cluster_spec().as_dict():
        raise ValueError(
            "Expected a cluster whose workers step together. Received: one with parameter servers (the job 'ps'). "
            "Use tf.train.CheckpointManager on its coordinator."
        )
    if resolver is None:
        strategy = tf.distribute.get_strategy()
        here = place(strategy)
        if (alone := side_by_side.alone(strategy, here)) is not None:
            alone.warn()
    else:
        here = place_in(resolver)
    if here.members == 1:
        return here, LocalCoordinator()
    return here, ServiceCoordinator(here.member, here.members)
