"""Draws what a strategy distributes through an iterator whose state can be saved.

TensorFlow cannot save the iterator that a strategy makes of a dataset (`OwnedMultiDeviceIterator`). It can save what
that draws from: this process' dataset, after TensorFlow has cut it for workers and replicas. A `Tap` puts one plain
iterator below each iterator of the strategy, which then gives the same elements in the same order. Below that, the
elements are numbered, so that a state says how many were drawn when it was saved: the strategy draws some ahead of
training, in threads of its own.

Verified with TensorFlow 2.16.1 to 2.21.0; `tests/backend/tensorflow/test_tap.py` has the canaries.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_preempt.backend.tensorflow.datasets import (
    as_bytes,
    iterator_parts,
    keeps_a_shuffle,
    keeps_every_shuffle,
    process_of,
    restore_iterator,
)
from keras_preempt.backend.tensorflow.reshuffling import keys_of, parts_of, values_of

_FIRST = 1 << 60
"""The number of the first element: no other range in a pipeline gets that far."""

_NUMBER = "next"
"""The key of the next number in the state of a range."""

_NEAR = 3
"""How far a part of a state may have moved since the state before."""

NEEDED = ("_cloned_datasets", "_input_workers", "_input_context", "_original_dataset")
"""The attributes of a distributed dataset that are relied upon."""


@dataclass(frozen=True)
class Known:
    """What one whole state has shown about the others of the same iterator."""

    count: int  # Of its parts, nearly all of which are the elements of a shuffle buffer.
    size: int  # In bytes.
    informative: tuple[int, ...]
    """The parts that say how many elements were drawn, and what the shuffles hold."""


class TapState:
    """The state of an iterator, from its `iterator_parts`. Its bytes, which take as long again, are made on demand.

    Attributes:
        drawn: How many elements were drawn; None at their end.
        size: Its approximate size in bytes.
        known: What is known of such states now.
    """

    def __init__(self, parts: tf.Tensor, known: Known | None) -> None:
        self._state: tf.Tensor | bytes = parts  # Not both: a buffer may be large.
        self.drawn: int | None = None
        count = int(parts.shape[0])
        if known is not None and abs(count - known.count) <= known.count // 10:
            # They move a little: a few more or fewer parts come before them if more or fewer batches are drawn ahead.
            near = {number + away for number in known.informative for away in range(-_NEAR, _NEAR + 1)}
            where = sorted(number for number in near if 0 <= number < count)
            with contextlib.suppress(tf.errors.OpError):  # Other parts lie there.
                self._informative = as_bytes(tf.gather(parts, where))
                self.drawn = _drawn(self._informative)
            self.known, self.size = known, known.size * count // known.count
        if self.drawn is None:
            self._informative = self.to_bytes()
            self.drawn, self.size = _drawn(self._informative), len(self._informative)
            informative, count = [], 0
            for number, part in enumerate(parts_of(self._informative)):  # Not listed: a buffer may be large.
                if _NUMBER in keys_of(part) or keeps_a_shuffle(part.metadata):
                    informative.append(number)
                count += 1
            self.known = Known(count, self.size, tuple(informative))

    def keeps_every_shuffle(self, pipelines: Iterable[Any]) -> bool:
        """Whether it holds the reshuffling of the epochs to come, of every shuffle of these pipelines."""
        shuffled = list(pipelines)
        return all(keeps_every_shuffle(self._informative, each) for each in shuffled) or all(
            keeps_every_shuffle(self.to_bytes(), each) for each in shuffled
        )

    def to_bytes(self) -> bytes:
        if not isinstance(self._state, bytes):
            self._state = as_bytes(self._state)
        return self._state


class Tap:
    """Makes the iterators of a distributed dataset, each over a plain one of its only part, which is in this process.

    Attributes:
        library: What cuts the dataset, and can save its state or not.
        release: Its version: a state of another one is not tried.
        per_batch: How many elements one batch takes: one for each replica of this process.
        shard: Which part of the dataset this process draws, and of how many.
    """

    library = "TensorFlow"
    release = tf.__version__

    def __init__(self, distributed: Any) -> None:
        self._distributed = distributed
        workers = distributed._input_workers
        self._device = workers.worker_devices[0]
        self.per_batch = len(workers.compute_devices_for_worker(0))
        context = distributed._input_context
        self.shard = (0, 1) if context is None else (context.input_pipeline_id, context.num_input_pipelines)
        (part,) = distributed._cloned_datasets
        self._spec = part.element_spec
        options = tf.data.Options()
        # A buffer behind the numbers would make them run ahead of what was drawn.
        options.experimental_optimization.inject_prefetch = False
        with tf.device(self._device):
            numbers = tf.data.Dataset.range(_FIRST, tf.int64.max)
            self._numbered = tf.data.Dataset.zip((numbers, part)).with_options(options)
        self._drawing: Any = None
        self._live: Any = None
        self._known: Known | None = None

    def begin(self) -> None:
        """Makes the iterator below the next one of the strategy."""
        with tf.device(self._device):
            self._live = iter(self._numbered)

    def state(self) -> TapState | None:
        """Returns the state; None if it cannot be saved. Can be called while the strategy draws."""
        try:
            parts = iterator_parts(self._live)
            if parts is None:
                return None
            state = TapState(parts, self._known)
        except tf.errors.OpError:
            return None
        self._known = state.known
        return state

    def restore(self, state: bytes, number: int) -> None:
        """Puts the iterator that was begun at a state after so many elements; raises ValueError if it cannot."""
        if _drawn(state) != number:
            raise ValueError(
                f"Expected the state of an input pipeline after {number} elements. Received: one after {_drawn(state)}."
            )
        restore_iterator(self._live, state)

    def skip(self) -> bool:
        """Draws one element of the iterator that was begun, and drops it; returns False at the end."""
        with tf.device(self._device):
            return bool(self._live.get_next_as_optional().has_value())

    def iterate(self) -> Any:
        """Makes the strategy's iterator over the one that was begun."""
        with tf.device(self._device):
            if self._drawing is None:  # Traced once: each epoch makes iterators.
                self._drawing = tf.function(_drawing, autograph=False).get_concrete_function(self._live)
            drawing = tf.data.experimental.from_variant(self._drawing(self._live), self._spec)
        distributed = copy.copy(self._distributed)
        distributed._cloned_datasets = [drawing]
        return iter(distributed)


def tap_of(distributed: Any) -> Tap | None:
    """See `seam.Backend.tap`."""
    from tensorflow.python.distribute import input_lib

    if type(distributed) is not input_lib.DistributedDataset:
        return None
    if any(not hasattr(distributed, name) for name in NEEDED) or _map_dataset() is None:
        return None  # Of another release: its input is replayed.
    workers = distributed._input_workers
    if len(distributed._cloned_datasets) != 1 or len(workers.worker_devices) != 1:
        return None
    # A remote worker would take the state with it.
    is_here = process_of(workers.worker_devices[0]) == process_of("")
    return Tap(distributed) if is_here else None


def _drawing(below: Any) -> Any:
    """Returns the variant of a dataset of the elements of an iterator, without their numbers."""
    calls = tf.data.Dataset.range(tf.int64.max)
    # One function for each element, where the public operations take three, and in the thread that draws: every batch
    # passes here. Such a dataset ends where its function finds the iterator at its end.
    drawn = _map_dataset()(
        calls,
        lambda call: below.get_next()[1],
        use_inter_op_parallelism=False,
        preserve_cardinality=False,
    )
    return tf.data.experimental.to_variant(drawn)


def _map_dataset() -> Any:
    """Returns the class of what `Dataset.map` makes; None if this release has another."""
    with contextlib.suppress(ImportError):
        from tensorflow.python.data.ops import map_op

        kind = getattr(map_op, "_MapDataset", None)
        takes = () if kind is None else inspect.signature(kind).parameters
        if {"use_inter_op_parallelism", "preserve_cardinality"} <= set(takes):
            return kind
    return None


def _drawn(state: bytes) -> int | None:
    """Returns how many elements were drawn when a state was saved; None at the end of the pipeline."""
    for part in parts_of(state):
        keys = keys_of(part)
        if _NUMBER in keys and len(part.tensors) == 1:
            number = int(values_of(part, len(keys))[keys.index(_NUMBER)])
            if number >= _FIRST:
                return number - _FIRST
    return None
