"""The pipeline that Keras makes of arrays, from a later batch on.

Keras draws the order of an epoch once, when an iterator is made: a pipeline of the rows of each batch, zipped with the
arrays and followed by a map that takes these rows out. The order is drawn by a random operation in a function of the
pipeline, whose state TensorFlow makes anew, from the operation's seeds, for each iterator. So each iterator gives the
order that its epoch had, whatever was drawn before. And since the rows of a batch are known before the map, batches can
be left out below it: their rows are counted, and no sample is taken out of the arrays.

Verified with Keras 3.8.0 to 3.15.1 and TensorFlow 2.16.1 to 2.21.0; `tests/backend/tensorflow/test_array_batches.py`
has the canaries.
"""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

_ABOVE_THE_MAP = ("_OptionsDataset", "_PrefetchDataset")
"""What Keras puts behind the map: nothing that changes a batch."""

_ROWS = (
    "_ConcatenateDataset",
    "_FlatMapDataset",
    "_MapDataset",
    "_ParallelMapDataset",
    "_PrefetchDataset",
    "_RangeDataset",
)
"""What Keras makes the rows of: nothing that an iterator leaves behind for the next one."""

_RANDOM = re.compile(r"Random|Multinomial|Rng|Stateful|VariableOp|PyFunc")


def is_of_arrays(dataset: Any) -> bool:
    """Whether a pipeline is built as Keras is known to build one of arrays.

    Args:
        dataset: What Keras has made, before a strategy distributes it.
    """
    return _takes_rows_out(_map_of(dataset))


def beginning_at(dataset: Any, batch: int) -> tf.data.Dataset:
    """Returns the pipeline that Keras has made of arrays without its first batches.

    Args:
        dataset: One that `is_of_arrays`.
        batch: How many batches are left out.

    Returns:
        A dataset whose iterators give the batches that those of `dataset` give later on.
    """
    mapped = _map_of(dataset)
    (zipped,) = mapped._inputs()
    rest = zipped.skip(batch).map(mapped._map_func._func, num_parallel_calls=tf.data.AUTOTUNE)
    return rest.prefetch(tf.data.AUTOTUNE).with_options(dataset.options())


def _map_of(dataset: Any) -> Any:
    while type(dataset).__name__ in _ABOVE_THE_MAP:
        (dataset,) = dataset._inputs()
    return dataset


def _takes_rows_out(mapped: Any) -> bool:
    if type(mapped).__name__ != "_ParallelMapDataset":
        return False
    wrapper = getattr(mapped, "_map_func", None)
    if wrapper is None or not callable(getattr(wrapper, "_func", None)) or _is_random(wrapper.function):
        return False
    (zipped,) = mapped._inputs()
    if type(zipped).__name__ != "_ZipDataset" or len(zipped._inputs()) != 2:
        return False
    rows, arrays = zipped._inputs()
    if type(arrays).__name__ != "_RepeatDataset" or type(arrays._inputs()[0]).__name__ != "_TensorDataset":
        return False
    return all(name in _ROWS for name in _kinds(rows))


def _kinds(dataset: Any) -> list[str]:
    kinds = [type(dataset).__name__]
    for upstream in dataset._inputs():
        kinds += _kinds(upstream)
    return kinds


def _is_random(function: Any) -> bool:
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for inner in graph.library.function for node in inner.node_def)]
    return any(_RANDOM.search(node.op) for node in nodes)
