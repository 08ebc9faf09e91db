"""What can be read from a tf.data pipeline, and the state of its iterators.

Verified with TensorFlow 2.16.1 to 2.21.0. Each use checks what it relies on, and raises `UnsupportedTensorFlow`;
tests/backend/tensorflow/test_canaries.py has a canary for each private name.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_preempt.backend.tensorflow.ingredients import hidden_sources as hidden_sources
from keras_preempt.backend.tensorflow.ingredients import ingredients as ingredients
from keras_preempt.backend.tensorflow.random_operations import keeps_state
from keras_preempt.backend.versions import UnsupportedTensorFlow

_SHUFFLES = re.compile(rb"@@num_random_samples(?:@@|[^A-Za-z_])")
"""In the keys of a part of an iterator's state that holds the reshuffling of a shuffle."""

_MADE_AT_ONCE = (
    "_BatchDataset",
    "_FilterDataset",
    "_MapDataset",
    "_OptionsDataset",
    "_ParallelBatchDataset",
    "_ParallelMapDataset",
    "_PrefetchDataset",
)
"""Datasets whose iterators make the iterator of their input only when they are made themselves."""

_KEEPS_BATCHES = (
    "CacheDataset",
    "_MapDataset",
    "_OptionsDataset",
    "_ParallelMapDataset",
    "_PrefetchDataset",
    "_RepeatDataset",
    "_ShuffleDataset",
    "_SkipDataset",
    "_TakeDataset",
)
"""Datasets that hand on the batches of their input, one for one; a map is assumed to."""


def pipelines_of(distributed: Any) -> list[Any]:
    """Returns the pipelines of what Keras iterates over, before a strategy has changed them; empty if unknown."""
    if isinstance(distributed, tf.data.Dataset):
        return [distributed]
    if not isinstance(distributed, tf.distribute.DistributedDataset):
        return []  # It may be any object of the user's, whose attributes are not asked: one may draw data.
    if isinstance(original := getattr(distributed, "_original_dataset", None), tf.data.Dataset):
        return [original]
    return [each for each in getattr(distributed, "_datasets", ()) if isinstance(each, tf.data.Dataset)]


def is_copied(distributed: Any) -> bool:
    """Whether iterators are made of a copy of the dataset, which TensorFlow makes in the process of a remote worker.

    Such a copy has seed generators of its own: those of the dataset do not advance.
    """
    workers = getattr(distributed, "_input_workers", None)
    if workers is None:
        return False
    made_on = [dataset._variant_tensor.device for dataset in pipelines_of(distributed)]
    if not made_on:
        return False
    return {process_of(name) for name in made_on} != {process_of(name) for name in workers.worker_devices}


def process_of(device: str) -> tuple[str | None, int | None]:
    """Returns the job and the task of a device; those where operations run by default if its name has no job."""
    spec = tf.DeviceSpec.from_string(device)
    if spec.job is None:
        spec = tf.DeviceSpec.from_string(tf.zeros(()).device)
    return spec.job, spec.task


# -- The state of an iterator ------------------------------------------------------------------------------


def iterator_state(iterator: Any) -> bytes | None:
    """Returns the position of a plain tf.data iterator, with the reshuffling of the epochs to come.

    None where TensorFlow cannot save it: one that a distribution strategy made, or whose pipeline has a Python function
    or a stateful random op. `iterator` may also be an object that draws from one as its `source`.
    """
    state = iterator_parts(getattr(iterator, "source", iterator))
    return None if state is None else as_bytes(state)


def iterator_parts(iterator: Any) -> tf.Tensor | None:
    """Returns the same as a vector of variants, its parts, in at most half the time."""
    resource = getattr(iterator, "_iterator_resource", None)
    if resource is None or not isinstance(iterator, tf.data.Iterator):
        return None
    # 2: fail if an op of the pipeline keeps state that would not be saved.
    try:
        return tf.raw_ops.SerializeIterator(resource_handle=resource, external_state_policy=2)
    except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError):
        return None


def as_bytes(parts: tf.Tensor) -> bytes:
    return bytes(tf.io.serialize_tensor(parts).numpy())


def restore_iterator(iterator: Any, state: bytes) -> None:
    """Puts a new iterator of the same dataset, or the `source` of one, at the position that `iterator_state` returned.

    Raises ValueError if the state does not fit the dataset.
    """
    resource = getattr(getattr(iterator, "source", iterator), "_iterator_resource", None)
    if resource is None:
        raise UnsupportedTensorFlow("_iterator_resource on tf.data iterators")
    try:
        variant = tf.io.parse_tensor(state, tf.variant)
        tf.raw_ops.DeserializeIterator(resource_handle=resource, serialized=variant)
    except tf.errors.OpError as error:
        raise ValueError(
            "Expected the saved position of this input pipeline. Received: one that TensorFlow cannot "
            f"restore into it ({error.message}). Was the pipeline changed since the checkpoint was written?"
        ) from error


def never_has_state(dataset: Any) -> bool:
    """Whether `iterator_state` is known to be None for every iterator of some data, which may be no pipeline.

    TensorFlow would find out as well, but would log a warning that reads like an error for each of them.
    """
    pipelines = pipelines_of(dataset)
    parts = (part for pipeline in pipelines for part in ingredients(pipeline) if part.where)
    return not pipelines or any(part.does is not None and keeps_state(part.name) for part in parts)


def keeps_a_shuffle(keys: bytes) -> bool:
    """Whether a part of a state with these keys holds the reshuffling of the epochs to come."""
    return _SHUFFLES.search(keys + b"@@") is not None


def keeps_every_shuffle(state: bytes, dataset: Any) -> bool:
    """Whether an iterator's state holds the reshuffling of the epochs to come.

    TensorFlow drops that part of the iterator when a shuffle has handed out its last element, which under a prefetch is
    before the last batch is drawn.
    """
    return len(_SHUFFLES.findall(state)) >= sum(1 for _ in _shuffles_of(dataset))


def draws_ahead(dataset: Any, names: Sequence[str]) -> bool:
    """Whether elements of a pipeline of datasets with these names, the last one first, may be drawn ahead of use.

    Not only a prefetch does that: TensorFlow puts one behind each pipeline that it tunes, and makes one dataset of a
    map and the batch after it, which draws ahead.
    """
    options = dataset.options()
    optimized = options.experimental_optimization

    def is_on(choice: bool | None) -> bool:
        return optimized.apply_default_optimizations is not False if choice is None else choice

    batch = next((number for number, name in enumerate(names) if "Batch" in name), len(names))
    return (
        any("Prefetch" in name or "Parallel" in name for name in names)
        or (options.autotune.enabled is not False and is_on(optimized.inject_prefetch))
        or (is_on(optimized.map_and_batch_fusion) and "MapDataset" in names[batch:])
    )


def iterators() -> list[Any]:
    """Returns all iterators of this process: dropping one may take long.

    Dropping an iterator waits for the thread with which TensorFlow tunes its pipeline. That thread may miss the signal
    to end, and then sleeps until it would tune again: for as long as the iterator has existed, up to a minute
    (`Model::OptimizeLoop`; seen with TensorFlow 2.21 on busy processors).
    """
    kinds = {tf.data.Iterator, tf.distribute.DistributedIterator}
    known: dict[type, bool] = {}  # There are many objects, of few types.
    found = []
    for each in gc.get_objects():
        kind = type(each)
        if kind not in known:
            known[kind] = not kinds.isdisjoint(kind.__mro__)
        if known[kind]:
            found.append(each)
    return found


# -- Shuffles, batches and caches --------------------------------------------------------------------------


def _shuffles_of(dataset: Any) -> Iterator[Any]:
    if not hasattr(dataset, "_inputs"):
        raise UnsupportedTensorFlow("_inputs() on tf.data datasets")
    if type(dataset).__name__ == "_ShuffleDataset":
        if not hasattr(dataset, "_seed2"):
            raise UnsupportedTensorFlow("_seed and _seed2 on shuffled datasets")
        yield dataset
    for upstream in dataset._inputs():
        yield from _shuffles_of(upstream)


def reshuffles_while_drawn(dataset: Any) -> bool:
    """Whether drawing batches, and not only making an iterator, advances the reshuffling of a pipeline.

    It does with a shuffle below a repetition, or below another shuffle, which makes the iterator of its input at the
    first draw. True if unknown.
    """
    while type(dataset).__name__ in _MADE_AT_ONCE:
        (dataset,) = dataset._inputs()
    if type(dataset).__name__ == "_ShuffleDataset":
        (dataset,) = dataset._inputs()
    return any(True for _ in _shuffles_of(dataset))


def batch_size(dataset: Any) -> int | None:
    """Returns how many samples a full batch of a pipeline holds; None if TensorFlow does not know."""
    while True:
        found = int(tf.raw_ops.ComputeBatchSize(input_dataset=tf.data.experimental.to_variant(dataset)))
        if found > 0:
            return found
        if type(dataset).__name__ not in _KEEPS_BATCHES:
            return None
        (dataset,) = dataset._inputs()


def shuffle_buffers(dataset: Any) -> Iterator[tuple[int, int | None]]:
    """Yields for each shuffle of a pipeline how many elements it holds, and the bytes of one; None if unknown."""
    for shuffle in _shuffles_of(dataset):
        (upstream,) = shuffle._inputs()
        elements = int(tf.get_static_value(shuffle._buffer_size))
        if (length := int(upstream.cardinality())) >= 0:
            elements = min(elements, length) if elements >= 0 else length
        yield elements, _element_bytes(upstream)


def held_elements(dataset: Any) -> Iterator[tuple[int | None, int | None]]:
    """Yields for each cache in memory how many elements it will hold, and the bytes of one; None if unknown.

    The state of an iterator holds a cache that is complete.
    """
    if type(dataset).__name__ == "CacheDataset":
        if not hasattr(dataset, "_filename"):
            raise UnsupportedTensorFlow("_filename on cached datasets")
        if not tf.get_static_value(dataset._filename):
            length = int(dataset.cardinality())
            yield length if length >= 0 else None, _element_bytes(dataset)
    for upstream in dataset._inputs():
        yield from held_elements(upstream)


def _element_bytes(dataset: Any) -> int | None:
    tensors = getattr(dataset, "_tensors", None)
    if type(dataset).__name__ == "_TensorSliceDataset" and tensors:
        total = 0
        for tensor in tensors:
            if tensor.dtype == tf.string:
                total += int(tf.reduce_sum(tf.strings.length(tensor)))
            else:
                total += int(tf.size(tensor)) * int(tensor.dtype.size)
        return total // max(1, int(tensors[0].shape[0] or 1))
    total = 0
    for spec in tf.nest.flatten(dataset.element_spec):
        known = isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()
        if not known or spec.dtype in (tf.string, tf.variant, tf.resource):
            return None
        total += int(spec.shape.num_elements()) * int(spec.dtype.size)
    return total
