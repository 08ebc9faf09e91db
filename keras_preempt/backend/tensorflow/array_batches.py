"""The pipeline that Keras makes of arrays, from a later batch on.

Keras draws the order of an epoch once, when an iterator is made: a pipeline of the rows of each batch, zipped with the
arrays and followed by a map that takes these rows out. The order is drawn by a random operation in a function of the
pipeline. TensorFlow makes its state anew, from the operation's seeds, for each iterator. So each iterator gives the
order of its epoch, whatever was drawn before. And since the rows of a batch are known before the map, batches can be
left out below it: their rows are counted, and no sample is taken out of the arrays.

Verified with Keras 3.8.0 to 3.15.1 and TensorFlow 2.16.1 to 2.21.0; `tests/backend/tensorflow/test_array_batches.py`
has the canaries.
"""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

_ABOVE_THE_MAP = ("_OptionsDataset", "_PrefetchDataset")
"""What Keras puts behind the map, none of which changes a batch."""

_ROWS = {
    "_ConcatenateDataset",
    "_FlatMapDataset",
    "_MapDataset",
    "_ParallelMapDataset",
    "_PrefetchDataset",
    "_RangeDataset",
}
"""What Keras makes the rows of, none of which keeps anything for the next iterator."""

_RANDOM = re.compile(r"Random|Multinomial|Rng|Stateful|VariableOp|PyFunc")


def is_of_arrays(dataset: Any) -> bool:
    """Whether a pipeline, not distributed yet, is built as Keras builds one of arrays."""
    mapped = _map_of(dataset)
    if type(mapped).__name__ != "_ParallelMapDataset":
        return False
    wrapper = getattr(mapped, "_map_func", None)
    if wrapper is None or not callable(getattr(wrapper, "_func", None)):
        return False
    graph = wrapper.function.graph.as_graph_def()
    nodes = [*graph.node, *(node for inner in graph.library.function for node in inner.node_def)]
    if any(_RANDOM.search(node.op) for node in nodes):
        return False
    (zipped,) = mapped._inputs()
    if type(zipped).__name__ != "_ZipDataset" or len(zipped._inputs()) != 2:
        return False
    rows, arrays = zipped._inputs()
    if type(arrays).__name__ != "_RepeatDataset" or type(arrays._inputs()[0]).__name__ != "_TensorDataset":
        return False
    left = [rows]
    while left:
        dataset = left.pop()
        if type(dataset).__name__ not in _ROWS:
            return False
        left += dataset._inputs()
    return True


def beginning_at(dataset: Any, batch: int) -> tf.data.Dataset:
    """Returns a dataset that `is_of_arrays` without the first batches of each of its iterators."""
    mapped = _map_of(dataset)
    (zipped,) = mapped._inputs()
    rest = zipped.skip(batch).map(mapped._map_func._func, num_parallel_calls=tf.data.AUTOTUNE)
    return rest.prefetch(tf.data.AUTOTUNE).with_options(dataset.options())


def _map_of(dataset: Any) -> Any:
    while type(dataset).__name__ in _ABOVE_THE_MAP:
        (dataset,) = dataset._inputs()
    return dataset
