"""Tells when anybody makes an iterator of a pipeline that passes certain shuffles.

Verified with TensorFlow 2.16.1 to 2.21.0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import tensorflow as tf

from keras_preempt.backend.tensorflow.internals import pipelines_of
from keras_preempt.backend.tensorflow.reshuffling import sources


def watch(shuffles: Collection[int], told: Callable[[], None]) -> Callable[[], None]:
    """Calls a function before each iterator over certain shuffles is made, in whatever thread.

    Args:
        shuffles: Identities (`id`) of the shuffled datasets.
        told: What is called.

    Returns:
        A function that ends it.
    """
    kinds = [_owner(kind) for kind in (tf.data.Dataset, tf.distribute.DistributedDataset)]
    kinds += [_owner(_distributed())]
    before: dict[Any, Any] = {kind: vars(kind)["__iter__"] for kind in kinds}
    for kind, original in before.items():
        kind.__iter__ = _observed(original, shuffles, told)

    def end() -> None:
        for kind, original in before.items():
            kind.__iter__ = original

    return end


def _observed(
    original: Callable[[Any], Any], shuffles: Collection[int], told: Callable[[], None]
) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def make(self: Any) -> Any:
        if any(id(shuffle) in shuffles for each in pipelines_of(self) for shuffle, _ in sources(each)):
            told()
        return original(self)

    return make


def _owner(kind: type) -> Any:
    """The class that defines how iterators of a class are made."""
    return next(each for each in kind.__mro__ if "__iter__" in vars(each))


def _distributed() -> type:
    from tensorflow.python.distribute import input_lib

    return input_lib.DistributedDataset  # type: ignore[no-any-return]
