"""A distributed input hands out what it hands out without snapshots, and continues from one with the same elements.

One replica, so that batches can be read as they are; what it is drawn through is the same as for several. Two replicas
and two workers are in tests/cluster/test_input_snapshots.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from keras_preempt.agreement.messages import Position
from keras_preempt.backend.tensorflow import datasets
from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.state import input_size, inputs
from keras_preempt.state.component import StoredState
from keras_preempt.state.shuffles import Shuffles
from tests.state.continued_input import continued_input
from tests.state.test_inputs import PIPELINES, N, begin, captured, feed_of, numbers, run, saves_of

pytestmark = pytest.mark.filterwarnings("ignore:.*ran out of data")

EPOCHS = 3


@pytest.fixture(scope="module")
def strategy() -> tf.distribute.Strategy:
    return tf.distribute.MirroredStrategy(["CPU:0"])


def is_drawing(state: Any, batch: int | None) -> bool:
    position = Position(0, "epoch" if batch is None else "train", batch or 0, 0)
    return StoredState(position, {"input": state}, WorkerValues(), lambda way: True).drawing


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("shuffled, prefetched", True),
        ("endless, prefetched", False),
        *(
            pytest.param(name, counted, marks=pytest.mark.chaos)
            for name in PIPELINES
            for counted in (True, False)
        ),
    ],
)
def test_restored_anywhere_the_rest_of_the_epoch_and_all_later_ones_are_the_same(
    name: str, counted: bool, strategy: tf.distribute.Strategy
) -> None:
    """A snapshot at every second boundary, a save at every one; restored with and without counts of the shuffles."""
    saves: list[Any] = []
    iterator, feed = feed_of(name, strategy=strategy)
    shuffles = Shuffles(feed.dataset, None) if counted else None
    inputs.record_states(feed, shuffles)
    assert (feed.snapshots is None) == (name == "a python function")

    def at_boundary(epoch: int, step: int, drawn: int) -> None:
        if feed.snapshots is not None and len(saves) % 2:
            feed.snapshots.take(int(feed.position(pending=True)["batches"]))
        saves.append((epoch, step, drawn, captured(feed), None if shuffles is None else shuffles.counts()))

    whole = run(iterator, EPOCHS, at_boundary)
    without_snapshots, _ = feed_of(name, strategy=strategy)
    assert whole == run(without_snapshots, EPOCHS)
    for epoch, step, drawn, (state, arrays), counts in saves:
        if epoch > 1 or drawn not in (1, 3):
            continue
        iterator, feed = feed_of(name, strategy=strategy)
        shuffles = Shuffles(feed.dataset, None) if counted else None
        inputs.record_states(feed, shuffles)
        how = continued_input(feed, state, arrays, batch=step, shuffles=shuffles)
        assert how.startswith("from a snapshot of" if "snapshot" in state else "by replay of")
        if shuffles is not None:
            shuffles.go_to(counts, drawing=is_drawing(state, step))
        rest = run(iterator, EPOCHS - epoch)
        assert rest == [whole[epoch][drawn:], *whole[epoch + 1 :]], f"epoch {epoch}, step {step}: {how}"


@pytest.mark.parametrize(
    ("dataset", "why"),
    [
        (lambda: numbers().repeat().shuffle(input_size.ELEMENT_LIMIT + 1), "up to 50001 elements"),
        (lambda: numbers().map(lambda n: tf.zeros((2**22,))).repeat().shuffle(9), "about 144 MiB"),
        (lambda: numbers().filter(lambda n: n > 1).cache(), "a cache of unknown length"),
        (lambda: numbers().map(lambda n: tf.zeros((2**22,))).cache(), "shuffles and caches hold up to 7"),
    ],
)
def test_what_is_too_large_for_a_snapshot_is_replayed_and_it_is_said_why(
    dataset: Any, why: str, strategy: tf.distribute.Strategy
) -> None:
    _, feed = begin(dataset().batch(2), strategy, steps_per_epoch=3)
    assert feed.snapshots is None
    assert why in feed.why_replayed


@pytest.mark.parametrize(
    ("room", "saved"), [("auto", False), (10_000_000, True), (10, False), ("replay", False)]
)
def test_the_user_chooses_what_is_too_large(
    room: Any, saved: bool, strategy: tf.distribute.Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_size, "ELEMENT_LIMIT", N - 1)
    iterator, feed = feed_of("shuffled, prefetched", strategy=strategy, limit=input_size.limit_of(room))
    states: list[Any] = []

    def at_boundary(*_: int) -> None:
        if feed.snapshots is not None:
            feed.snapshots.take(int(feed.position(pending=True)["batches"]))
        states.append(captured(feed)[0])

    run(iterator, 1, at_boundary)
    assert any("snapshot" in state for state in states) == saved
    assert (feed.why_replayed == 'input_state is "replay"') == (room == "replay")


def test_a_snapshot_that_does_not_fit_the_pipeline_is_an_error(strategy: tf.distribute.Strategy) -> None:
    _, saves = saves_of("shuffled", strategy=strategy)
    _, feed = feed_of("interleaved", strategy=strategy)
    with pytest.raises(ValueError, match="Was the pipeline changed"):
        continued_input(feed, *saves[2][-1], batch=2)


def test_a_snapshot_that_another_worker_cannot_use_is_not_used(strategy: tf.distribute.Strategy) -> None:
    whole, saves = saves_of("shuffled", 2, strategy=strategy)
    iterator, feed = feed_of("shuffled", strategy=strategy)
    asked: list[str] = []
    how = continued_input(feed, *saves[2][-1], batch=2, all_go=lambda way: bool(asked.append(way)))
    assert asked == ["snapshot"]
    assert how.startswith("by replay of")
    assert run(iterator, 2) == [whole[0][2:], whole[1]]


def test_a_cache_in_memory_is_counted_and_one_in_a_file_is_not() -> None:
    assert list(datasets.held_elements(numbers().cache().repeat())) == [(N, 8)]
    assert list(datasets.held_elements(numbers().cache("/tmp/x").batch(2))) == []
    assert list(datasets.held_elements(numbers().filter(lambda n: n > 1).cache())) == [(None, 8)]
