"""What can be seen of an input on JAX, and the state of its iterators.

A pipeline is a `tf.data.Dataset`, if the program passes one: TensorFlow is asked about it, and not imported otherwise.
Everything else comes from Python, of which nothing can be seen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from keras_preempt.backend.seam_of_input import Ingredient


def of_tensorflow(name: str = "datasets") -> Any:
    """Returns a module of the TensorFlow backend; None where the program has not imported TensorFlow, or forbids it."""
    if sys.modules.get("tensorflow") is None:  # With None in its place, an import raises ModuleNotFoundError.
        return None
    return import_module(f"keras_preempt.backend.tensorflow.{name}")


def is_pipeline(data: object) -> bool:
    """Whether some data is a `tf.data.Dataset`."""
    known = of_tensorflow()
    return known is not None and bool(known.pipelines_of(data))


def pipelines_of(data: Any) -> list[Any]:
    """Returns the pipelines of some data; empty if it is none."""
    known = of_tensorflow()
    return [] if known is None else list(known.pipelines_of(data))


def ingredients(dataset: Any) -> Iterator[Ingredient]:
    """Yields everything that a pipeline is made of."""
    yield from of_tensorflow().ingredients(dataset)


def iterator_state(iterator: Any) -> bytes | None:
    """Returns the position of an iterator; None if it cannot be saved."""
    source = getattr(iterator, "source", None)
    known = of_tensorflow()
    state: bytes | None = None if known is None or source is None else known.iterator_state(source)
    return state


def never_has_state(dataset: Any) -> bool:
    """Whether `iterator_state` is known to be None for every iterator of some data."""
    return not is_pipeline(dataset) or bool(of_tensorflow().never_has_state(dataset))


def keeps_every_shuffle(state: bytes, dataset: Any) -> bool:
    """Whether an iterator's state holds the reshuffling of the epochs to come."""
    return bool(of_tensorflow().keeps_every_shuffle(state, dataset))


def restore_iterator(iterator: Any, state: bytes) -> None:
    """Puts a new iterator at a position. Raises ValueError if the state does not fit the pipeline."""
    of_tensorflow().restore_iterator(iterator.source, state)


def reshuffles_while_drawn(dataset: Any) -> bool:
    """Whether drawing batches, and not only making an iterator, advances the reshuffling of a pipeline."""
    return bool(of_tensorflow().reshuffles_while_drawn(dataset))


def shuffle_buffers(dataset: Any) -> Iterator[tuple[int, int | None]]:
    """Yields for each shuffle how many elements it holds, and the bytes of one; None if unknown."""
    yield from of_tensorflow().shuffle_buffers(dataset)


def held_elements(dataset: Any) -> Iterator[tuple[int | None, int | None]]:
    """Yields what else an iterator's state holds that may be large: elements of a cache, and the bytes of one."""
    yield from of_tensorflow().held_elements(dataset)


def iterators() -> list[Any]:
    """Returns all iterators of tf.data of this process."""
    known = of_tensorflow()
    return [] if known is None else list(known.iterators())


def hidden_sources() -> list[str]:
    """Returns what functions of this process draw from states that nobody can save, in words."""
    known = of_tensorflow()
    return [] if known is None else list(known.hidden_sources())
