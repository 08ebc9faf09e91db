"""How far a shuffle has come is read and set without leaving a trace, whoever makes iterators of it.

Everything here is a canary too: the names and the meaning of what TensorFlow keeps in a seed generator are private.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_preempt.backend.tensorflow import reshuffling
from keras_preempt.backend.tensorflow.reshuffling import (
    SeedGenerator,
    keeps_an_order,
    reshuffling_of,
    sources,
)
from keras_preempt.state.shuffles import Shuffles
from tests.backend.changed import tensorflow_changed as _changed

N = 32


def shuffled(seed: int = 7, buffer: int = N) -> tf.data.Dataset:
    return tf.data.Dataset.range(N).shuffle(buffer, seed=seed)


def order(dataset: tf.data.Dataset) -> list[int]:
    return [int(each) for each in dataset.as_numpy_iterator()]


def test_finding_the_seed_generator_changes_no_order() -> None:
    expected = [order(data) for data in [shuffled()] for _ in range(3)]
    data, other = shuffled(), shuffled(8)
    others = order(other)
    first = order(data)
    found = SeedGenerator(data)
    assert [first, order(data), order(data)] == expected, _changed("probing a shuffle advances it")
    assert found.count() == 6, _changed("an iterator advances a seed generator by another number")
    untouched = shuffled(8)
    assert [others, order(other)] == [order(untouched), order(untouched)], _changed("probing advances others")


def test_an_order_comes_again_when_the_count_is_set_back() -> None:
    data = shuffled()
    found = SeedGenerator(data)
    first, second, third = order(data), order(data), order(data)
    assert first != second
    for count, expected in ((2, second), (0, first), (4, third), (4, third)):
        found.advance_to(count)
        assert found.count() == count, _changed("the count that was set is not the one that is read")
        assert order(data) == expected, _changed("setting the count does not set the order")


def test_all_pipelines_of_a_shuffle_share_its_seed_generator() -> None:
    data = shuffled()
    found = SeedGenerator(data)
    for pipeline in (data.take(4).batch(2), data.skip(4).prefetch(2), data.map(lambda n: n + 1)):
        before = found.count()
        next(iter(pipeline))
        assert found.count() == before + 2


def test_setting_the_count_leaves_an_iterator_alone_that_is_being_drawn() -> None:
    expected = order(shuffled())
    data = shuffled()
    found, drawn = SeedGenerator(data), iter(data)
    begun = [int(next(drawn)) for _ in range(5)]
    found.advance_to(20)
    assert begun + [int(each) for each in drawn] == expected


def test_looking_for_seed_generators_again_and_again_gets_no_slower() -> None:
    kept = [shuffled() for _ in range(6)]
    tried = []
    for data in kept:
        before, _ = reshuffling._newest_name()
        SeedGenerator(data)
        tried.append(reshuffling._newest_name()[0] - before)
    # The first one also tries what other tests have left, and makes the names that all others try.
    assert max(tried[2:]) <= tried[1], "each search leaves names for the next one to try"


@pytest.mark.parametrize("drawn", [False, True])
def test_a_large_buffer_costs_no_more(drawn: bool) -> None:
    data = shuffled(buffer=1_000_000)
    if drawn:
        next(iter(data))
    found = SeedGenerator(data)
    assert len(reshuffling._state(found._probe)) < 10_000, _changed("the probe holds the whole buffer")


def test_random_numbers_that_are_drawn_anew_count_alike() -> None:
    numbers = tf.data.Dataset.random(seed=4, rerandomize_each_iteration=True).take(3)
    ((source, settled),) = sources(numbers)
    found = reshuffling_of(source)
    assert settled
    assert found is not None
    first, second = order(numbers), order(numbers)
    assert found.count() == 4
    found.advance_to(0)
    assert [order(numbers), order(numbers)] == [first, second]


def _alone(number: tf.Tensor) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors(number)


KINDS: dict[str, Callable[[Any], Any]] = {
    "_AssertCardinalityDataset": lambda data: data.apply(tf.data.experimental.assert_cardinality(N)),
    "_FlatMapDataset": lambda data: data.flat_map(_alone),
    "_GroupByWindowDataset": lambda data: data.group_by_window(
        lambda n: n % 2, lambda key, window: window, 2
    ),
    "_IgnoreErrorsDataset": lambda data: data.ignore_errors(),
    "_InterleaveDataset": lambda data: data.interleave(_alone),
    "_ParallelInterleaveDataset": lambda data: data.interleave(_alone, num_parallel_calls=2),
    "_ScanDataset": lambda data: data.scan(tf.constant(0, tf.int64), lambda state, n: (state, n)),
    "_UniqueDataset": lambda data: data.unique(),
    "CacheDataset": lambda data: data.cache(),
    "_BatchDataset": lambda data: data.batch(2),
    "_FilterDataset": lambda data: data.filter(lambda n: n >= 0),
    "_MapDataset": lambda data: data.map(lambda n: n),
    "_OptionsDataset": lambda data: data.with_options(tf.data.Options()),
    "_PaddedBatchDataset": lambda data: data.padded_batch(2),
    "_ParallelBatchDataset": lambda data: data.batch(2, num_parallel_calls=2),
    "_ParallelMapDataset": lambda data: data.map(lambda n: n, num_parallel_calls=2),
    "_PrefetchDataset": lambda data: data.prefetch(2),
    "_ShardDataset": lambda data: data.shard(2, 0),
    "_ShuffleDataset": lambda data: data.shuffle(4, seed=1),
    "_SkipDataset": lambda data: data.skip(2),
    "_TakeDataset": lambda data: data.take(20),
    "_TakeWhileDataset": lambda data: data.take_while(lambda n: n >= 0),
    "_WindowDataset": lambda data: data.window(4),
    "_ZipDataset": lambda data: tf.data.Dataset.zip((data, tf.data.Dataset.range(N))),
}


def test_every_kind_that_is_called_settled_is_tried() -> None:
    assert set(KINDS) == set(reshuffling._SETTLED)


@pytest.mark.parametrize("kind", KINDS)
def test_a_settled_shuffle_is_advanced_no_more_after_the_first_element(kind: str) -> None:
    data = shuffled()
    pipeline = KINDS[kind](data)
    assert type(pipeline).__name__ == kind, _changed(f"{kind} has another name")
    assert all(settled for _, settled in sources(pipeline))
    found = reshuffling_of(data)
    assert found is not None
    iterator = iter(pipeline)
    next(iterator)
    assert found.count() == 2
    for _ in iterator:
        pass
    assert found.count() == 2, _changed(
        f"an iterator of {kind} makes iterators of its input while it is drawn"
    )


@pytest.mark.parametrize(
    "repeated",
    [
        lambda data: data.repeat(2),
        lambda data: data.concatenate(data),
        lambda data: data.take(4).repeat().take(12),
    ],
    ids=["repeat", "concatenate", "repeat in the middle"],
)
def test_a_shuffle_that_goes_on_reshuffling_is_not_called_settled(repeated: Callable[[Any], Any]) -> None:
    assert not all(settled for _, settled in sources(repeated(shuffled()).batch(2)))


def test_an_order_is_kept_by_a_cache_above_a_shuffle_and_by_a_shuffle_that_is_no_source() -> None:
    alike = tf.data.Dataset.range(N).shuffle(N, seed=1, reshuffle_each_iteration=False)
    assert list(sources(alike.batch(2))) == []
    assert keeps_an_order(shuffled().batch(2).cache().prefetch(1))
    assert not keeps_an_order(tf.data.Dataset.range(N).cache().shuffle(N, seed=1).batch(2))
    assert not keeps_an_order(shuffled().repeat().batch(2))


def test_shuffles_with_other_seeds_than_those_of_a_checkpoint_are_noticed() -> None:
    saved = Shuffles(shuffled(7).batch(2), None).seeds()
    assert Shuffles(shuffled(7).batch(2), None).seeds() == saved
    assert Shuffles(shuffled(8).batch(2), None).seeds() != saved
    assert Shuffles(shuffled(7).shuffle(4, seed=1), None).seeds() != saved


def _through_strategy(data: tf.data.Dataset) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    next(iter(strategy.experimental_distribute_dataset(data.batch(4))))


def _in_thread(data: tf.data.Dataset) -> None:
    thread = threading.Thread(target=order, args=(data.take(2),))
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    "go_through", [order, lambda data: next(iter(data.skip(1).batch(2))), _through_strategy, _in_thread]
)
def test_whoever_makes_an_iterator_of_a_watched_shuffle_is_noticed_and_counts(
    go_through: Callable[[Any], Any],
) -> None:
    data, other = shuffled(), shuffled()
    found = SeedGenerator(data)
    made: list[str] = []
    end = reshuffling.watch_iterators({id(data)}, lambda: made.append("made"))
    try:
        go_through(other)
        assert not made
        go_through(data)
        assert made, _changed("iterators are made in another way")
        assert found.count() == 2
    finally:
        end()
    made.clear()
    go_through(data)
    assert not made, "the watch has not ended"


def test_what_cannot_be_found_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reshuffling, "_MOST_NAMES", -1)
    data = shuffled()
    assert reshuffling_of(data) is None
    untouched = shuffled()
    np.testing.assert_array_equal(order(data), order(untouched))
