"""Questions about a distribution strategy that the repairs of Keras ask."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def is_mirrored(strategy: Any) -> bool:
    """Whether each replica of the strategy is a thread that holds its own copy of every variable.

    Other strategies (TPUStrategy above all) run their replicas in another way and are left to Keras.
    """
    return isinstance(strategy, (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy))


def has_several_mirrored_replicas(strategy: Any) -> bool:
    """Whether there are several of them."""
    return is_mirrored(strategy) and bool(strategy.num_replicas_in_sync > 1)
