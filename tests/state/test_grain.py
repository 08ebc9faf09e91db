"""Grain data continues from the state of its own iterator: exactly, and without drawing what came before."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import grain
import numpy as np
import pytest

from keras_preempt.backend.tensorflow.feed import DatasetFeed
from tests.cluster.small_fit import await_
from tests.state.continued_input import continued_input
from tests.state.test_inputs import begin, but_for, captured, run

pytestmark = pytest.mark.filterwarnings("ignore:.*ran out of data")

SAMPLES, BATCH, EPOCHS = 23, 4, 3


class Source:
    """Numbers, which remembers those that it was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: Any) -> Any:
        self.asked.append(int(index))
        return np.array([int(index)])

    def __repr__(self) -> str:
        return "Source"


def map_dataset(source: Source) -> Any:
    return grain.MapDataset.source(source).seed(5).shuffle().random_map(_noise).batch(BATCH)


def _noise(element: Any, rng: np.random.Generator) -> Any:
    return element * 1000 + rng.integers(0, 1000)


def repeated(source: Source) -> Any:
    made = grain.MapDataset.source(source).seed(5).shuffle().repeat().batch(BATCH)
    few = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)  # 500 of endless data else.
    return made.to_iter_dataset(few)


def iter_dataset(source: Source) -> Any:
    made = grain.MapDataset.source(source).seed(5).shuffle().to_iter_dataset()
    return made.filter(lambda element: element[0] % 7 != 0).batch(BATCH, drop_remainder=True)


def prefetched(source: Source) -> Any:
    made = grain.MapDataset.source(source).shuffle(seed=5).to_iter_dataset()
    made = grain.experimental.WindowShuffleIterDataset(made, window_size=6, seed=3)
    return grain.experimental.ThreadPrefetchIterDataset(made.batch(BATCH), prefetch_buffer_size=3)


def mixed(source: Source) -> Any:
    one, two = (grain.MapDataset.source(source).shuffle(seed=n).repeat().to_iter_dataset() for n in (1, 2))
    return grain.IterDataset.mix([one, two], weights=[0.7, 0.3]).batch(BATCH)


def loader(source: Source, epochs: int | None = 1) -> Any:
    sampler = grain.samplers.IndexSampler(SAMPLES, shuffle=True, seed=3, num_epochs=epochs)
    operations = [grain.transforms.Batch(BATCH)]
    return grain.DataLoader(data_source=source, sampler=sampler, operations=operations, worker_count=0)


DATA: dict[str, tuple[Callable[[Source], Any], int | None]] = {
    "map": (map_dataset, None),
    "repeated": (repeated, 4),
    "iter": (iter_dataset, None),
    "iter, shuffled in windows, prefetched": (prefetched, None),
    "iter, mixed, in steps": (mixed, 4),
    "loader": (loader, None),
    "loader, in steps": (lambda source: loader(source, None), 3),
}


def feed_of(name: str) -> tuple[Source, Any, DatasetFeed]:
    make, steps = DATA[name]
    source = Source()
    iterator, feed = begin(make(source), steps_per_epoch=steps)
    source.asked.clear()  # Keras has looked at some batches.
    return source, iterator, feed


def epochs(iterator: Any, count: int, at: Callable[[int, int | None], None] = lambda *_: None) -> Any:
    """Trains; calls `at(epoch, step)` before each step, and without a step before each epoch."""
    drawn = []
    for epoch in range(count):
        at(epoch, None)
        drawn += run(iterator, 1, lambda _, step, __, epoch=epoch: at(epoch, step))
    return drawn


Saves = dict[tuple[int, "int | None"], Any]


def saving(iterator: Any, feed: DatasetFeed, count: int) -> tuple[Any, Saves]:
    """Trains; returns what was drawn, and what was captured at every boundary."""
    saves: Saves = {}

    def save(epoch: int, step: int | None) -> None:
        saves[epoch, step] = captured(feed, inside=step is not None)

    return epochs(iterator, count, save), saves


@functools.cache
def saves_of(name: str) -> tuple[Any, Saves]:
    """Those of a whole training."""
    _, iterator, feed = feed_of(name)
    return saving(iterator, feed, EPOCHS)


@pytest.mark.parametrize(
    "name", but_for(("map", "repeated", "iter, shuffled in windows, prefetched", "loader"), DATA)
)
def test_restored_anywhere_the_rest_is_the_same_and_earlier_epochs_are_not_drawn(name: str) -> None:
    whole, saves = saves_of(name)
    assert sum(map(len, whole)) >= 9
    source, iterator, _ = feed_of(name)
    assert epochs(iterator, EPOCHS) == whole
    drawn_in_all = len(source.asked)
    for epoch, step in ((0, 2), (1, None), (1, 0), (2, 1)):
        saved = saves[epoch, step]
        source, iterator, feed = feed_of(name)
        how = continued_input(feed, *saved, batch=step)
        assert how == "nothing was drawn yet" or "Grain" in how, (epoch, step)
        rest = epochs(iterator, EPOCHS - epoch)
        assert rest == [whole[epoch][step or 0 :], *whole[epoch + 1 :]], (epoch, step, how)
        if epoch == 2 and DATA[name][1] is None:  # Of endless data, Grain reads ahead.
            assert len(source.asked) <= drawn_in_all / 2, (epoch, step, how)


def test_a_fit_with_an_interleaving_of_endlessly_many_datasets_begins() -> None:
    made: list[int] = []

    def shard(number: int) -> Any:
        made.append(number)
        assert len(made) < 1000  # The datasets themselves never end.
        return grain.MapDataset.range(SAMPLES).batch(BATCH)

    shards = grain.MapDataset.range(3).map(shard).repeat()
    iterator, _ = begin(grain.experimental.InterleaveIterDataset(shards, cycle_length=2), steps_per_epoch=3)
    assert len(run(iterator, 1)[0]) == 3


def test_restored_twice_before_anything_is_drawn_the_rest_is_the_same() -> None:
    whole, saves = saves_of("repeated")
    _, iterator, feed = feed_of("repeated")
    continued_input(feed, *saves[1, 2], batch=2)
    _, again = saving(iterator, feed, 2)
    _, iterator, feed = feed_of("repeated")
    how = continued_input(feed, *again[0, 2], batch=2)
    assert "Grain" in how
    assert epochs(iterator, 2) == [whole[1][2:], whole[2]]


def test_a_state_that_another_worker_cannot_continue_from_is_not_used() -> None:
    whole, saves = saves_of("repeated")
    _, iterator, feed = feed_of("repeated")
    asked: list[str] = []
    how = continued_input(feed, *saves[1, 2], batch=2, all_go=lambda way: bool(asked.append(way)))
    assert asked == ["Grain"]
    assert how.startswith("by replay of")
    assert epochs(iterator, 2) == [whole[1][2:], whole[2]]


def test_an_input_that_is_over_is_not_kept_by_what_tensorflow_draws_it_with() -> None:
    """At the end of a process, TensorFlow waits for an iterator that draws from a Python which is already gone."""
    _, iterator, feed = feed_of("repeated")
    epochs(iterator, 1)
    kept = weakref.ref(feed)
    del iterator, feed, _

    def is_gone() -> bool:
        # A thread that draws ahead holds the feed for the moment in which it asks how far training has come. A
        # collection in that moment leaves it, as part of a cycle, to the next one.
        gc.collect()
        return kept() is None

    await_(is_gone, 120, "the feed is still there")
