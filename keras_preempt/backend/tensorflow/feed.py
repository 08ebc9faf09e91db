"""The data of a fit on TensorFlow: a `tf.data.Dataset`, as a strategy distributes it.

Grain data is a pipeline here as well: Keras wraps it in `tf.data.Dataset.from_generator`, whose iterator calls the
generator when its first batch is drawn.

Verified with Keras 3.8.0 to 3.15.1 (Grain data: from 3.11.3) and TensorFlow 2.16.1 to 2.21.0.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import tensorflow as tf

from keras_preempt.backend.keras.grain_iterators import GrainIterators
from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.backend.tensorflow import array_batches
from keras_preempt.backend.tensorflow.datasets import batch_size


class DatasetFeed(InputFeed):
    """The iterators that Keras' `TFEpochIterator` makes; see `InputFeed`."""

    NEEDS = (*InputFeed.NEEDS, "_distributed_dataset", "_distribute_strategy")

    @property
    def dataset(self) -> Any:
        return self._source._distributed_dataset

    @property
    def is_shared(self) -> bool:
        return not isinstance(self.dataset, tf.data.Dataset)

    @property
    def batch_size(self) -> int | None:
        # Of a dataset that the user has distributed, Keras sees only what one replica gets.
        return None if isinstance(self.passed, tf.distribute.DistributedDataset) else super().batch_size

    @property
    def batches(self) -> int | None:
        by_user = isinstance(self.passed, tf.distribute.DistributedDataset)
        # What Keras knows of such a dataset may be the number of one replica's batches.
        return None if by_user and self._source.steps_per_epoch is None else super().batches

    @property
    def global_batch(self) -> int | None:
        if self.undistributed is None:
            return self.batch_size
        # What the shape of a batch says is certain; a map after the batching hides it from TensorFlow.
        leaves = tf.nest.flatten(self.undistributed.element_spec, expand_composites=True)
        sizes = {leaf.shape[0] for leaf in leaves if isinstance(leaf, tf.TensorSpec) and leaf.shape.rank}
        if len(sizes) == 1 and (size := sizes.pop()) is not None:
            return int(size)
        return batch_size(self.undistributed)

    @property
    def sample(self) -> str:
        return str(tf.nest.map_structure(_sample, self.dataset.element_spec))

    @functools.cached_property
    def is_indexed(self) -> bool:
        """See `InputFeed.is_indexed`."""
        if type(self._source.data_adapter).__name__ != "ArrayDataAdapter":
            return False
        return all(map(array_batches.is_of_arrays, self.pipelines)) and len(self.pipelines) == 1

    def new_at(self, batch: int, order: Any = None) -> Any:
        if not batch:
            return self.new()
        rest = array_batches.beginning_at(self.pipelines[0], batch)
        return self.new(self._source._distribute_strategy.experimental_distribute_dataset(rest))

    def _make_again(self, grain: GrainIterators) -> bool:
        """Has Keras make the pipeline of its Grain data anew, of a generator whose iterators are recorded."""
        owner: Any = next(each for each in tf.data.Dataset.__mro__ if "from_generator" in vars(each))
        descriptor, original = vars(owner)["from_generator"], owner.from_generator
        here, wrapped = threading.get_ident(), []

        def from_generator(generator: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == here:
                wrapped.append(generator)
                generator = grain.around(generator)
            return original(generator, *args, **kwargs)

        owner.from_generator = staticmethod(from_generator)
        try:
            dataset = self._source.data_adapter.get_tf_dataset()
        finally:
            owner.from_generator = descriptor
        if len(wrapped) != 1:
            return False
        strategy = self._source._distribute_strategy
        self._source._distributed_dataset = strategy.experimental_distribute_dataset(dataset)
        return True


def _sample(spec: Any) -> list[tuple[str, list[int | None]]]:
    flat = tf.nest.flatten(spec, expand_composites=True)
    components = [component for component in flat if isinstance(component, tf.TensorSpec)]
    # A batch that is cut for several replicas has each tensor once for every replica.
    alike = {(c.dtype.name, tuple(c.shape[1:]) if c.shape.rank else ()) for c in components}
    return [(name, list(shape)) for name, shape in sorted(alike, key=repr)]
