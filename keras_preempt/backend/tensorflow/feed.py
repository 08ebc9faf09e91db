"""The data of a fit on TensorFlow: a `tf.data.Dataset`, as a strategy distributes it.

Verified with Keras 3.8.0 to 3.15.1 and TensorFlow 2.16.1 to 2.21.0.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from keras_preempt.backend.keras.grain_iterators import GrainIterators
from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.backend.tensorflow import array_batches, grain_data
from keras_preempt.backend.tensorflow.datasets import batch_size, pipelines_of


class DatasetFeed(InputFeed):
    """The iterators that Keras' `TFEpochIterator` makes; see `InputFeed`."""

    NEEDS = (*InputFeed.NEEDS, "_distributed_dataset", "_distribute_strategy")

    @property
    def dataset(self) -> Any:
        """See `InputFeed.dataset`."""
        return self._source._distributed_dataset

    @property
    def pipelines(self) -> list[Any]:
        """See `InputFeed.pipelines`."""
        return pipelines_of(self.dataset)

    @property
    def is_shared(self) -> bool:
        """See `InputFeed.is_shared`."""
        return not isinstance(self.dataset, tf.data.Dataset)

    @property
    def undistributed(self) -> tf.data.Dataset | None:
        """See `InputFeed.undistributed`."""
        dataset = self._dataset_passed
        return dataset if isinstance(dataset, tf.data.Dataset) else None

    @property
    def _is_distributed_by_user(self) -> bool:
        return isinstance(self._dataset_passed, tf.distribute.DistributedDataset)

    @property
    def batch_size(self) -> int | None:
        """See `InputFeed.batch_size`."""
        # Of a dataset that the user has distributed, Keras sees only what one replica gets.
        return None if self._is_distributed_by_user else super().batch_size

    @property
    def batches(self) -> int | None:
        """See `InputFeed.batches`."""
        if self._is_distributed_by_user and self._source.steps_per_epoch is None:
            return None  # What Keras knows then may be the number of one replica's batches.
        return super().batches

    @property
    def global_batch(self) -> int | None:
        """See `InputFeed.global_batch`."""
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
        """See `InputFeed.sample`."""
        return str(tf.nest.map_structure(_sample, self._source._distributed_dataset.element_spec))

    @property
    def is_indexed(self) -> bool:
        """See `InputFeed.is_indexed`."""
        return self._is_indexed

    def new_at(self, batch: int, order: Any = None) -> Any:
        """See `InputFeed.new_at`."""
        rest = array_batches.beginning_at(self.pipelines[0], batch)
        return self.new(self._source._distribute_strategy.experimental_distribute_dataset(rest))

    @functools.cached_property
    def _is_indexed(self) -> bool:
        if type(self._source.data_adapter).__name__ != "ArrayDataAdapter":
            return False
        return all(map(array_batches.is_of_arrays, self.pipelines)) and len(self.pipelines) == 1

    def _make_again(self, grain: GrainIterators) -> bool:
        dataset = grain_data.recorded(self._source.data_adapter, grain)
        if dataset is None:
            return False
        strategy = self._source._distribute_strategy
        self._source._distributed_dataset = strategy.experimental_distribute_dataset(dataset)
        return True

    def of_validation(self, model: Any, data: Any, steps: int | None) -> InputFeed | None:
        """See `InputFeed.of_validation`."""
        if not isinstance(data, tf.data.Dataset):
            return None
        epoch_iterator = type(self._source)(
            x=data,
            distribute_strategy=model.distribute_strategy,
            steps_per_execution=model.steps_per_execution,
            steps_per_epoch=steps,
            shuffle=False,
        )
        return DatasetFeed(epoch_iterator)


def _sample(spec: Any) -> list[tuple[str, list[int | None]]]:
    flat = tf.nest.flatten(spec, expand_composites=True)
    components = [component for component in flat if isinstance(component, tf.TensorSpec)]
    # A batch that is cut for several replicas has each tensor once for every replica.
    alike = {(c.dtype.name, tuple(c.shape[1:]) if c.shape.rank else ()) for c in components}
    return [(name, list(shape)) for name, shape in sorted(alike, key=repr)]
