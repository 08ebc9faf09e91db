"""What Keras makes of arrays is known: the order of an epoch depends on no other, and batches can be left out."""

from __future__ import annotations

import sys
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator

from keras_preempt.backend.tensorflow import array_batches
from tests.backend.arrays import BATCH, DATA, OPTIONS, SAMPLES, X, drawn
from tests.backend.programs import python


def pipeline(seed: int = 3, **options: Any) -> tf.data.Dataset:
    keras.utils.set_random_seed(seed)
    iterator = TFEpochIterator(distribute_strategy=tf.distribute.get_strategy(), **{**DATA, **options})
    dataset = iterator._distributed_dataset
    assert isinstance(dataset, tf.data.Dataset)
    return dataset


@pytest.mark.parametrize("shuffle", [True, False, "batch"])
def test_the_order_of_an_epoch_depends_on_no_other(shuffle: bool | str) -> None:
    dataset = pipeline(shuffle=shuffle)
    whole = drawn(dataset)
    next(iter(dataset))
    iter(dataset)
    together = iter(dataset), iter(dataset)
    assert drawn(zip(*together, strict=True)) == [[*batch, *batch] for batch in whole]
    assert drawn(dataset) == whole
    # Else it would say nothing.
    ordered = [row for batch in whole for row in batch[0]] == X.tolist()
    assert ordered == (shuffle is False)
    assert (drawn(pipeline(4, shuffle=shuffle)) == whole) == (shuffle is False)


OF_TENSORS = {"shuffle": True, "x": [X, tf.constant(X)], "y": None}


@pytest.mark.parametrize("options", [*OPTIONS.values(), OF_TENSORS], ids=[*OPTIONS, "tensor"])
def test_left_out_batches_leave_the_rest_as_it_is(options: dict[str, Any]) -> None:
    dataset = pipeline(**options)
    assert array_batches.is_of_arrays(dataset)
    whole = drawn(dataset)
    for batch in sorted({0, 1, len(whole) // 2, len(whole) - 1, len(whole)}):
        rest = array_batches.beginning_at(dataset, batch)
        assert drawn(rest) == whole[batch:], batch
        assert rest.options().experimental_distribute.auto_shard_policy == (
            dataset.options().experimental_distribute.auto_shard_policy
        )


def test_nothing_of_a_batch_that_is_left_out_is_taken_out_of_the_arrays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []
    gather = tf.gather

    def counted(params: Any, indices: Any, **options: Any) -> Any:
        def note(rows: Any) -> Any:
            taken.append(len(rows))
            return rows

        shape = indices.shape
        indices = tf.numpy_function(note, [indices], indices.dtype)
        indices.set_shape(shape)
        return gather(params, indices, **options)

    monkeypatch.setattr(tf, "gather", counted)
    dataset = pipeline(shuffle=True, y=None)
    rest = array_batches.beginning_at(dataset, 5)
    assert taken == []
    assert len(drawn(rest)) == 2
    assert sorted(taken) == [SAMPLES % BATCH, BATCH]
    assert len(drawn(dataset)) == 7
    assert len(taken) == 9


@pytest.mark.parametrize(
    "change",
    [
        lambda dataset: dataset.map(lambda *batch: batch),
        lambda dataset: dataset.shuffle(3),
        lambda dataset: dataset.cache(),
        lambda dataset: tf.data.Dataset.range(8).batch(2),
    ],
    ids=["mapped", "shuffled", "cached", "another"],
)
def test_what_is_built_otherwise_is_left_alone(change: Any) -> None:
    assert array_batches.is_of_arrays(pipeline(shuffle=True))
    assert not array_batches.is_of_arrays(change(pipeline(shuffle=True)))


def test_a_function_that_draws_for_each_batch_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    gather = tf.gather

    def noisy(params: Any, indices: Any, **options: Any) -> Any:
        return gather(params, indices, **options) + tf.cast(tf.random.uniform(()), params.dtype)

    monkeypatch.setattr(tf, "gather", noisy)
    assert not array_batches.is_of_arrays(pipeline(shuffle=True, y=None))


REPLICAS = f"""
import sys
sys.path.insert(0, {str(sys.path[0])!r})
import numpy as np, keras, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras_preempt.backend.tensorflow.feed import DatasetFeed

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
for shuffle in [sys.argv[1] == "True" or sys.argv[1]]:
    def feed():
        keras.utils.set_random_seed(3)
        iterator = TFEpochIterator(
            x=np.arange(45), batch_size=7, shuffle=shuffle, steps_per_execution=1, distribute_strategy=strategy
        )
        return DatasetFeed(iterator)
    def drawn(live):
        return [[np.asarray(part).tolist() for part in strategy.experimental_local_results(batch)] for batch in live]
    whole = drawn(feed().new())
    assert len(whole) == 7
    assert drawn(feed().new_at(3)) == whole[3:]
print("same")
"""


@pytest.mark.parametrize("shuffle", ["True", pytest.param("batch", marks=pytest.mark.chaos)])
def test_several_replicas_get_the_same_parts_of_each_batch(shuffle: str) -> None:
    run = python(REPLICAS, shuffle, timeout=590)
    assert run.stdout.split() == ["same"], run.stderr
