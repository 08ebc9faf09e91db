"""What is known about `tf.data` pipelines, which Keras takes on every backend, and the state of their iterators.

The functions are those of `backend/tensorflow`. A program that has not imported TensorFlow has no pipelines: then they
do nothing, and do not import it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_preempt.backend.tensorflow.datasets import draws_ahead as draws_ahead
    from keras_preempt.backend.tensorflow.datasets import held_elements as held_elements
    from keras_preempt.backend.tensorflow.datasets import hidden_sources as hidden_sources
    from keras_preempt.backend.tensorflow.datasets import ingredients as ingredients
    from keras_preempt.backend.tensorflow.datasets import is_copied as is_copied
    from keras_preempt.backend.tensorflow.datasets import iterator_state as iterator_state
    from keras_preempt.backend.tensorflow.datasets import iterators as iterators
    from keras_preempt.backend.tensorflow.datasets import keeps_every_shuffle as keeps_every_shuffle
    from keras_preempt.backend.tensorflow.datasets import never_has_state as never_has_state
    from keras_preempt.backend.tensorflow.datasets import pipelines_of as pipelines_of
    from keras_preempt.backend.tensorflow.datasets import reshuffles_while_drawn as reshuffles_while_drawn
    from keras_preempt.backend.tensorflow.datasets import restore_iterator as restore_iterator
    from keras_preempt.backend.tensorflow.datasets import shuffle_buffers as shuffle_buffers
    from keras_preempt.backend.tensorflow.reshuffling import SeedGenerator as SeedGenerator
    from keras_preempt.backend.tensorflow.reshuffling import keeps_an_order as keeps_an_order
    from keras_preempt.backend.tensorflow.reshuffling import reshuffling_of as reshuffling_of
    from keras_preempt.backend.tensorflow.reshuffling import seeds_of as seeds_of
    from keras_preempt.backend.tensorflow.reshuffling import sources as sources
    from keras_preempt.backend.tensorflow.reshuffling import watch_iterators as watch_iterators

_OF_RESHUFFLING = {
    "SeedGenerator",
    "keeps_an_order",
    "reshuffling_of",
    "seeds_of",
    "sources",
    "watch_iterators",
}


def _nothing(*args: Any) -> tuple[()]:
    return ()


_WITHOUT_PIPELINES: dict[str, Any] = {
    **dict.fromkeys(_OF_RESHUFFLING, _nothing),
    "draws_ahead": lambda dataset, names: False,
    "held_elements": _nothing,
    "hidden_sources": list,
    "ingredients": _nothing,
    "is_copied": lambda distributed: False,
    "iterator_state": lambda iterator: None,
    "iterators": list,
    "keeps_an_order": lambda dataset: False,
    "keeps_every_shuffle": _nothing,
    "never_has_state": lambda dataset: True,
    "pipelines_of": lambda data: [],
    "reshuffles_while_drawn": lambda dataset: False,
    "restore_iterator": _nothing,
    "shuffle_buffers": _nothing,
}
"""All names, each with its answer where the program has not imported TensorFlow."""


def __getattr__(name: str) -> Any:
    if name not in _WITHOUT_PIPELINES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if sys.modules.get("tensorflow") is None:  # With None in its place, an import raises ModuleNotFoundError.
        return _WITHOUT_PIPELINES[name]
    module = "reshuffling" if name in _OF_RESHUFFLING else "datasets"
    return getattr(import_module(f"keras_preempt.backend.tensorflow.{module}"), name)
