"""Reads and sets how far the reshuffling of a dataset has come.

`Dataset.shuffle` gives each new iterator another order. It takes the orders from a *seed generator*, which belongs to
the shuffle and not to a pipeline: all pipelines with the shuffle, all their iterators, and all copies that a
distribution strategy makes share it. Its whole state is a count, which no public function returns. Two things make it
readable for a few kilobytes and a millisecond. The saved state of a shuffle's iterator holds the current count of its
seed generator. And a second shuffle, of nothing, can be made on the seed generator of the first if the generator's
name in TensorFlow's resource manager is known. The name is found by trying all possible ones: its count changes when
an iterator of the dataset is made.

`Dataset.random(rerandomize_each_iteration=True)` works the same way.

Verified with TensorFlow 2.16.1 to 2.21.0; `tests/backend/tensorflow/test_canaries.py` has the canaries.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from keras_preempt.backend.tensorflow.datasets import as_bytes, pipelines_of
from keras_preempt.backend.tensorflow.ingredients import IGNORE_STATE

_COUNT = "epoch_num_random_samples"
"""The key of the count in the state of an iterator."""

_PER_ITERATOR = 2
"""By how much an iterator advances the count: it takes two numbers."""

_MOST_NAMES = 4000
"""How many names are tried at most: more would take seconds. A shuffle in a function takes a new name in each call."""

_SETTLED = (
    "CacheDataset",
    "_AssertCardinalityDataset",
    "_BatchDataset",
    "_FilterDataset",
    "_FlatMapDataset",
    "_GroupByWindowDataset",
    "_IgnoreErrorsDataset",
    "_InterleaveDataset",
    "_MapDataset",
    "_OptionsDataset",
    "_PaddedBatchDataset",
    "_ParallelBatchDataset",
    "_ParallelInterleaveDataset",
    "_ParallelMapDataset",
    "_PrefetchDataset",
    "_ScanDataset",
    "_ShardDataset",
    "_ShuffleDataset",
    "_SkipDataset",
    "_TakeDataset",
    "_TakeWhileDataset",
    "_UniqueDataset",
    "_WindowDataset",
    "_ZipDataset",
)
"""Datasets whose iterators make all iterators of their inputs before they give their first element."""

_KEEP_BETWEEN_ITERATORS = ("CacheDataset", "_VariantDataset")
"""Datasets that give what an earlier iterator has drawn, or whose inside is unknown."""


_gone: set[int] = set()
"""Numbers in the names of seed generators that no longer exist. No number is used twice."""

_known: weakref.WeakKeyDictionary[Any, SeedGenerator | None] = weakref.WeakKeyDictionary()
"""By shuffled dataset; None for those whose seed generator was not found."""


class Unreadable(Exception):
    """The seed generator of a shuffle was not found."""


class SeedGenerator:
    """The seed generator of what `Dataset.shuffle` or `Dataset.random` has returned. Raises Unreadable if not found."""

    def __init__(self, dataset: Any) -> None:
        is_random = type(dataset).__name__ == "_RandomDataset"
        self._probe = _iterator(dataset) if is_random else _find(dataset)
        # Finding it has made one iterator.
        self.advance_to(self.count() - _PER_ITERATOR)

    def count(self) -> int:
        """Returns its count: two for each iterator that was ever made."""
        return _count_of(self._probe)

    def advance_to(self, count: int) -> None:
        """Sets the count, forwards or backwards: the next iterator gets the order that follows."""
        _set(self._probe, count)


def reshuffling_of(dataset: Any) -> SeedGenerator | None:
    """Returns the seed generator of a shuffle; None if it cannot be read."""
    if dataset not in _known:
        try:
            _known[dataset] = SeedGenerator(dataset)
        except (Unreadable, tf.errors.OpError, AttributeError, ValueError, TypeError):
            _known[dataset] = None
    return _known[dataset]


def sources(dataset: Any, settled: bool = True) -> Iterator[tuple[Any, bool]]:
    """Yields the parts of a pipeline that give each iterator another order, from its end to its beginning.

    Each comes with whether it is *settled*: an iterator of the pipeline does not advance it after its first element.
    Others are advanced while elements are drawn, such as those below a repetition.
    """
    name = type(dataset).__name__
    if name == "_ShuffleDataset":
        reshuffles = dataset._reshuffle_each_iteration is not False
    else:
        again = getattr(dataset, "_rerandomize_each_iteration", getattr(dataset, "_rerandomize", None))
        reshuffles = name == "_RandomDataset" and bool(again)
    if reshuffles:
        yield dataset, settled
    for upstream in dataset._inputs():
        yield from sources(upstream, settled and name in _SETTLED)


def seeds_of(shuffle: Any) -> tuple[int, int]:
    """Returns the seeds of one of `sources`: its own and the global one of when it was made; both 0 for none."""
    first, second = (int(tf.get_static_value(seed)) for seed in (shuffle._seed, shuffle._seed2))
    return first, second


def keeps_an_order(dataset: Any) -> bool:
    """Whether later iterators of a pipeline depend on what was drawn from earlier ones: a shuffle below a cache."""
    if type(dataset).__name__ in _KEEP_BETWEEN_ITERATORS:
        return not hasattr(dataset, "_inputs") or not dataset._inputs() or any(True for _ in sources(dataset))
    return any(map(keeps_an_order, dataset._inputs()))


def watch_iterators(shuffles: Collection[int], on_new: Callable[[], None]) -> Callable[[], None]:
    """Calls `on_new` before an iterator over shuffles of these `id`s is made, in any thread; returns what ends that."""
    from tensorflow.python.distribute import input_lib

    def observed(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def make(self: Any) -> Any:
            if any(id(shuffle) in shuffles for each in pipelines_of(self) for shuffle, _ in sources(each)):
                on_new()
            return original(self)

        return make

    before: dict[Any, Any] = {}
    for kind in (tf.data.Dataset, tf.distribute.DistributedDataset, input_lib.DistributedDataset):
        owner = next(each for each in kind.__mro__ if "__iter__" in vars(each))
        before[owner] = vars(owner)["__iter__"]
    for owner, original in before.items():
        owner.__iter__ = observed(original)

    def end() -> None:
        for owner, original in before.items():
            owner.__iter__ = original

    return end


# -- Finding the seed generator of a shuffle ---------------------------------------------------------------


def _iterator(dataset: tf.data.Dataset) -> Any:
    """Makes an iterator without TensorFlow's optimizations of pipelines, from which nothing will be drawn."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    # Only the resource: the rest of the iterator keeps the dataset alive.
    return iter(dataset.with_options(options))._iterator_resource


def _find(dataset: Any) -> Any:
    """Makes an iterator over nothing on the seed generator of a shuffle. One more iterator of the shuffle is made."""
    newest, prefix = _newest_name()
    candidates = [number for number in range(newest) if number not in _gone]
    if len(candidates) > _MOST_NAMES:
        raise Unreadable(f"there may be {len(candidates)} shuffles in this process")
    probes = {}
    for number in candidates:
        twin = _on_generator(dataset, f"{prefix}{number}")
        if (name := _generator_of(twin)) == f"{prefix}{number}":
            probes[name] = _iterator(twin)
        else:  # That name no longer exists; the twin has a new one, which goes with it.
            _gone.update((number, int(name.removeprefix(prefix))))
    before = {name: _count_of(probe) for name, probe in probes.items()}
    _iterator(dataset)
    moved = [name for name, probe in probes.items() if _count_of(probe) != before[name]]
    # Each probe has advanced what it looks at.
    for name, probe in probes.items():
        if moved != [name]:
            _set(probe, before[name] - _PER_ITERATOR)
    if len(moved) != 1:
        raise Unreadable(f"{len(moved)} of {len(probes)} seed generators were its own")
    _set(probes[moved[0]], before[moved[0]])
    return probes[moved[0]]


def _newest_name() -> tuple[int, str]:
    """Returns the number, and the part before it, in the name of a seed generator that is made now."""
    name = _generator_of(tf.data.Dataset.range(0).shuffle(1, seed=1))
    found = re.fullmatch(r"(.*\D)(\d+)", name)
    if found is None:
        raise Unreadable(f"seed generators have names like {name!r}")
    _gone.add(int(found[2]))
    return int(found[2]), found[1]


def _on_generator(dataset: Any, name: str) -> Any:
    """Makes a shuffle of nothing on the seed generator of that name, or on a new one if there is none."""
    nothing = tf.data.Dataset.range(0)
    handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=name)
    variant = tf.raw_ops.ShuffleDatasetV3(
        input_dataset=tf.data.experimental.to_variant(nothing),
        buffer_size=1,
        seed=dataset._seed,
        seed2=dataset._seed2,
        seed_generator=handle,
        output_types=[tf.int64],
        output_shapes=[[]],
    )
    return tf.data.experimental.from_variant(variant, nothing.element_spec)


def _generator_of(shuffled: Any) -> str:
    """Returns the name of the seed generator of a shuffle of nothing."""
    serialized = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(shuffled), external_state_policy=IGNORE_STATE
    )
    graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
    names = [
        handle.name
        for node in graph.node
        if node.op == "Const"
        for handle in node.attr["value"].tensor.resource_handle_val
    ]
    if len(names) != 1:
        raise Unreadable(f"a shuffle has {len(names)} seed generators")
    return str(names[0])


def _state(probe: Any) -> bytes:
    saved = tf.raw_ops.SerializeIterator(resource_handle=probe, external_state_policy=IGNORE_STATE)
    return as_bytes(saved)


def _set(probe: Any, count: int) -> None:
    state = _state(probe)
    whole = tensor_pb2.TensorProto.FromString(state)
    parts = list(parts_of(state))
    for part, values, at in _with_count(parts):
        values[at] = tf.constant(count, tf.int64)
        compressed = tf.raw_ops.CompressElement(components=values)
        part.tensors[0].CopyFrom(
            tensor_pb2.TensorProto.FromString(tf.io.serialize_tensor(compressed).numpy())
        )
    changed = tensor_pb2.TensorProto(dtype=whole.dtype, tensor_shape=whole.tensor_shape, variant_val=parts)
    saved = tf.io.parse_tensor(changed.SerializeToString(), tf.variant)
    tf.raw_ops.DeserializeIterator(resource_handle=probe, serialized=saved)


def _count_of(probe: Any) -> int:
    for _, values, at in _with_count(parts_of(_state(probe))):
        return int(values[at])
    raise Unreadable(f"the state of a shuffle has no {_COUNT}")


def parts_of(state: bytes) -> Iterator[Any]:
    """Yields the parts of an iterator's state, one for each dataset of its pipeline: keys and a compressed value."""
    whole = tensor_pb2.TensorProto.FromString(state)
    if whole.variant_val:
        yield from whole.variant_val
        return
    # All lengths first, then all parts.
    content, sizes = whole.tensor_content, []
    at = 0
    for _ in range(whole.tensor_shape.dim[0].size):
        size = shift = 0
        while True:
            byte, at = content[at], at + 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        sizes.append(size)
    for size in sizes:
        yield tensor_pb2.VariantTensorDataProto.FromString(content[at : at + size])
        at += size


def keys_of(part: Any) -> list[str]:
    return str(part.metadata.decode(errors="replace")).split("@@")[1:]


def _with_count(parts: Iterable[Any]) -> Iterator[tuple[Any, list[Any], int]]:
    """Yields the parts that hold the count, with their values and its index among these."""
    for part in parts:
        keys = keys_of(part)
        for at, key in enumerate(keys):
            if key.rpartition(":")[2] == _COUNT:  # Some datasets write the name of the iterator before it.
                yield part, values_of(part, len(keys)), at


def values_of(part: Any, count: int) -> list[Any]:
    """Returns the values of a part that holds only integers."""
    compressed = tf.io.parse_tensor(part.tensors[0].SerializeToString(), tf.variant)
    values = tf.raw_ops.UncompressElement(
        compressed=compressed, output_types=[tf.int64] * count, output_shapes=[[]] * count
    )
    return list(values)
