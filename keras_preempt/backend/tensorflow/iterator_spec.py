"""What an iterator over a dataset looks like to `tf.function`, known without making one.

Every iterator that is made advances the reshuffling of its dataset, so that one made only to be looked at would change
the data. Verified with TensorFlow 2.16.1 to 2.21.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_KEPT = (
    "_input_workers",
    "_element_spec",
    "_strategy",
    "_options",
    "_cardinality",
    "_enable_get_next_as_optional",
    "_replica_order",
)
"""Attributes that a distributed dataset hands to its iterators, in the order in which their type takes them."""


def iterator_spec(dataset: Any) -> tf.TypeSpec | None:
    """Returns the type of the iterators that `iter(dataset)` makes.

    Args:
        dataset: A `tf.data.Dataset`, or one as a strategy distributes it.

    Returns:
        The type; None for a dataset of another kind, or of a TensorFlow that keeps other attributes.
    """
    if isinstance(dataset, tf.data.Dataset):
        return tf.data.IteratorSpec(dataset.element_spec)
    kind = _distributed_spec()
    if kind is None or not all(hasattr(dataset, name) for name in _KEPT):
        return None
    return kind(*(getattr(dataset, name) for name in _KEPT))


def _distributed_spec() -> Any:
    try:
        from tensorflow.python.distribute import input_lib
    except ImportError:
        return None
    return getattr(input_lib, "DistributedIteratorSpec", None)
