"""Grain data on TensorFlow: the pipeline that Keras makes of it, through iterators whose states are kept.

Keras wraps the data in `tf.data.Dataset.from_generator`, whose iterator calls the generator when its first batch is
drawn.

Verified with Keras 3.11.3 to 3.15.1 and TensorFlow 2.16.1 to 2.21.0.
"""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf

from keras_preempt.backend.keras.grain_iterators import GrainIterators


def recorded(adapter: Any, iterators: GrainIterators) -> tf.data.Dataset | None:
    """Returns the pipeline that Keras makes of Grain data, anew, with iterators that are recorded.

    Args:
        adapter: Keras' adapter of the data.
        iterators: Gets them.

    Returns:
        The pipeline; None if Keras does not make it of a generator.
    """
    owner: Any = next(each for each in tf.data.Dataset.__mro__ if "from_generator" in vars(each))
    descriptor, original = vars(owner)["from_generator"], owner.from_generator
    here, wrapped = threading.get_ident(), []

    def from_generator(generator: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == here:
            wrapped.append(generator)
            generator = iterators.around(generator)
        return original(generator, *args, **kwargs)

    owner.from_generator = staticmethod(from_generator)
    try:
        dataset = adapter.get_tf_dataset()
    finally:
        owner.from_generator = descriptor
    return dataset if len(wrapped) == 1 else None
