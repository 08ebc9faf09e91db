"""How far the shuffles of a `tf.data.Dataset` have come: see `keras_preempt.backend.tensorflow.reshuffling`.

Asked only about pipelines, of which there are none where the program has not imported TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from keras_preempt.backend.jax.datasets import of_tensorflow
from keras_preempt.backend.seam_of_input import SeedGenerator


def _known() -> Any:
    return of_tensorflow("reshuffling")


def sources(dataset: Any) -> Iterator[tuple[Any, bool]]:
    """Yields each shuffle, and whether drawing does not advance it after an iterator's first element."""
    yield from _known().sources(dataset)


def reshuffling_of(dataset: Any) -> SeedGenerator | None:
    """Returns the seed generator of a shuffle; None if it cannot be read."""
    found: SeedGenerator | None = _known().reshuffling_of(dataset)
    return found


def seeds_of(shuffle: Any) -> tuple[int, int]:
    """Returns the seed of a shuffle, and the global one of when it was made; both 0 for none."""
    first, second = _known().seeds_of(shuffle)
    return int(first), int(second)


def keeps_an_order(dataset: Any) -> bool:
    """Whether later iterators of a pipeline depend on what was drawn from earlier ones."""
    return bool(_known().keeps_an_order(dataset))


def watch_iterators(shuffles: Collection[int], told: Callable[[], None]) -> Callable[[], None]:
    """Calls `told` before an iterator over certain shuffles (by `id`) is made; returns what ends that."""
    end: Callable[[], None] = _known().watch_iterators(shuffles, told)
    return end
