"""Restored at any position, in fresh objects, the input gives the same rest of the epoch and the same later ones.

The running side goes through Keras' own epoch iterator, counts as `fit` does, and saves at the boundary before
each train execution; so does the restored one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator

from keras_preempt.backend.keras import names
from keras_preempt.backend.tensorflow import datasets
from keras_preempt.backend.tensorflow.datasets import shuffle_buffers
from keras_preempt.backend.tensorflow.feed import DatasetFeed
from keras_preempt.state import input_size, inputs
from keras_preempt.state.shuffles import Shuffles

pytestmark = pytest.mark.filterwarnings("ignore:.*ran out of data")

Epochs = list[list[list[int]]]
"""Batches of numbers, by epoch."""

N = 7
EPOCHS = 3


def numbers() -> tf.data.Dataset:
    return tf.data.Dataset.range(N)


PIPELINES: dict[str, tuple[Callable[[], tf.data.Dataset], int | None]] = {
    "plain": (lambda: numbers().batch(2), None),
    "shuffled": (lambda: numbers().shuffle(N, seed=3).batch(2, drop_remainder=True), None),
    "shuffled in a small buffer": (lambda: numbers().shuffle(4, seed=3).batch(2), None),
    "shuffled alike in each epoch": (
        lambda: numbers().shuffle(N, seed=3, reshuffle_each_iteration=False).batch(2),
        None,
    ),
    "two shuffles": (
        lambda: numbers().shuffle(5, seed=3).map(lambda n: n * 2).batch(2).shuffle(3, seed=4),
        None,
    ),
    "shuffled, prefetched": (lambda: numbers().shuffle(N, seed=3).batch(2).prefetch(2), None),
    "cached, shuffled, prefetched": (lambda: numbers().cache().shuffle(N, seed=3).batch(2).prefetch(1), None),
    "shuffled, mapped in parallel": (
        lambda: numbers().shuffle(N, seed=3).map(lambda n: n + 1, num_parallel_calls=2).batch(2).prefetch(2),
        None,
    ),
    "unknown length": (lambda: numbers().filter(lambda n: n % 3 != 0).shuffle(N, seed=3).batch(2), None),
    "unknown length, prefetched": (
        lambda: numbers().shuffle(N, seed=3).filter(lambda n: n % 3 != 0).batch(2).prefetch(2),
        None,
    ),
    "repeated twice": (lambda: numbers().shuffle(N, seed=3).repeat(2).batch(4), None),
    "repeated twice, cut": (lambda: numbers().shuffle(N, seed=3).repeat(4).batch(4), 3),
    "endless": (lambda: numbers().shuffle(N, seed=3).repeat().batch(2), 4),
    "endless, prefetched": (lambda: numbers().shuffle(N, seed=3).repeat().batch(2).prefetch(3), 4),
    "interleaved": (
        lambda: (
            numbers()
            .shuffle(N, seed=3)
            .interleave(lambda n: tf.data.Dataset.from_tensors(n).repeat(2), 3)
            .batch(4)
        ),
        None,
    ),
    "one shuffle of two inputs": (
        lambda: (
            tf.data.Dataset.zip((numbers().shuffle(N, seed=3), numbers().shuffle(N, seed=5)))
            .map(lambda one, other: one * 100 + other)
            .batch(3)
        ),
        None,
    ),
    "a python function": (
        lambda: (
            numbers().shuffle(N, seed=3).map(lambda n: tf.py_function(lambda m: m, [n], tf.int64)).batch(2)
        ),
        None,
    ),
}


def feed_of(
    name: str,
    steps_per_execution: int = 1,
    strategy: tf.distribute.Strategy | None = None,
    limit: input_size.StateLimit | None = None,
) -> tuple[Any, DatasetFeed]:
    """What `fit` has when its callbacks are first called, over new objects."""
    dataset, steps_per_epoch = PIPELINES[name]
    iterator = TFEpochIterator(
        x=dataset(),
        distribute_strategy=strategy or tf.distribute.get_strategy(),
        steps_per_epoch=steps_per_epoch,
        steps_per_execution=steps_per_execution,
    )
    iterator.reset()
    feed = DatasetFeed(iterator)
    inputs.watch(feed, limit=limit)
    return iterator, feed


def run(
    iterator: Any, epochs: int, per_execution: int, at_boundary: Callable[[int, int, int], None]
) -> Epochs:
    """Trains; calls `at_boundary(epoch, step, batches drawn in this epoch)` before each execution."""
    drawn: Epochs = []
    for epoch in range(epochs):
        batches: list[list[int]] = []
        with iterator.catch_stop_iteration():
            for step, _, live in iterator:
                at_boundary(epoch, step, len(batches))
                for index in range(per_execution):
                    # An execution of several steps that runs dry ends early, and only an empty one ends the epoch.
                    batch = next(live, None)
                    if batch is None:
                        if index == 0:
                            raise StopIteration
                        break
                    batches.append(batch.numpy().tolist())
        drawn.append(batches)
    return drawn


def noting(steps: list[int]) -> Callable[[int, int, int], None]:
    return lambda epoch, step, drawn: steps.append(step)


def captured(feed: DatasetFeed) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    arrays: dict[str, np.ndarray] = {}
    state = inputs.capture(feed, feed.position(pending=True), arrays)
    return json.loads(json.dumps(state)), {name: array.copy() for name, array in arrays.items()}


@pytest.mark.parametrize("name", PIPELINES)
def test_restored_anywhere_the_rest_of_the_epoch_and_all_later_ones_are_the_same(name: str) -> None:
    check_everywhere(name, 1)


@pytest.mark.parametrize("name", ["shuffled", "unknown length", "endless, prefetched"])
def test_restored_between_executions_of_several_steps_the_rest_is_the_same(name: str) -> None:
    check_everywhere(name, 2)


_REPLAYED = (
    "shuffled, prefetched",
    "two shuffles",
    "repeated twice",
    "unknown length",
    "endless, prefetched",
)


@pytest.mark.parametrize("name", _REPLAYED)
def test_replayed_to_anywhere_the_rest_of_the_epoch_and_all_later_ones_are_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As under a strategy with several replicas, whose iterators TensorFlow cannot save.
    monkeypatch.setattr(datasets, "iterator_state", lambda iterator: None)
    check_everywhere(name, 1)


@pytest.mark.parametrize("name", PIPELINES)
def test_replayed_because_the_user_wants_it_the_rest_is_the_same(name: str) -> None:
    ways = check_everywhere(name, 1, input_size.chosen("replay"))
    assert ways == {"replay"}


def check_everywhere(name: str, per_execution: int, limit: input_size.StateLimit | None = None) -> set[str]:
    """Saves and restores at every boundary; returns the ways in which it was saved."""
    saves: list[tuple[int, int, int, Any]] = []
    iterator, feed = feed_of(name, per_execution, limit=limit)
    whole = run(
        iterator,
        EPOCHS,
        per_execution,
        lambda epoch, step, drawn: saves.append((epoch, step, drawn, captured(feed))),
    )
    assert sum(map(len, whole)) >= 6
    again, _ = feed_of(name, per_execution)
    assert (
        run(again, EPOCHS, per_execution, lambda *_: None) == whole
    )  # else nothing below would mean anything
    for epoch, step, drawn, (state, arrays) in saves:
        if epoch > 1:  # the last has no later ones to compare
            continue
        iterator, feed = feed_of(name, per_execution)
        inputs.restore(feed, state, arrays, batch=step)
        steps: list[int] = []
        rest = run(iterator, EPOCHS - epoch, per_execution, noting(steps))
        where = f"epoch {epoch}, step {step}: {state['way']}"
        assert steps[0] == step, where
        assert rest == [whole[epoch][drawn:], *whole[epoch + 1 :]], where
    return {state["way"] for *_, (state, _) in saves}


@pytest.mark.parametrize(
    ("name", "ways"),
    [
        ("plain", {"state"}),
        ("shuffled", {"state", "new"}),
        ("shuffled, prefetched", {"state", "new"}),
        ("a python function", {"replay"}),
    ],
)
def test_the_way_is_the_cheapest_that_is_exact(name: str, ways: set[str]) -> None:
    found: set[str] = set()
    iterator, feed = feed_of(name)
    run(iterator, 1, 1, lambda *_: found.add(captured(feed)[0]["way"]))
    assert found <= ways
    assert ways & found == ways or "state" in found


def test_a_position_that_was_restored_can_be_saved_and_restored_again() -> None:
    for name in ("shuffled, prefetched", "endless", "unknown length"):
        iterator, feed = feed_of(name)
        whole = run(iterator, 2, 1, lambda *_: None)
        state: Any = None
        for step in range(len(whole[0])):  # preempted before every single step
            iterator, feed = feed_of(name)
            if state is not None:
                inputs.restore(feed, *state, batch=step - 1 if step else 0)
            kept: dict[tuple[int, int], Any] = {}

            def keep(epoch: int, at: int, drawn: int, feed: Any = feed, kept: Any = kept) -> None:
                kept[epoch, at] = captured(feed)

            rest = run(iterator, 2, 1, keep)
            assert rest[0] == whole[0][max(0, step - 1) :], (name, step)
            assert rest[1] == whole[1], (name, step)
            state = kept[0, step]


def test_between_epochs_the_next_epoch_is_the_same() -> None:
    for name in ("shuffled", "shuffled, prefetched", "endless", "unknown length"):
        iterator, feed = feed_of(name)
        first = run(iterator, 1, 1, lambda *_: None)
        arrays: dict[str, np.ndarray] = {}
        state = inputs.capture(feed, feed.position(pending=False), arrays)
        second = run(iterator, 1, 1, lambda *_: None)
        iterator, feed = feed_of(name)
        inputs.restore(feed, state, arrays, batch=None)
        assert run(iterator, 1, 1, lambda *_: None) == second, (name, state["way"], first)


def test_a_pipeline_that_has_become_shorter_is_refused() -> None:
    iterator, feed = feed_of("a python function")
    saves: list[Any] = []
    run(iterator, 1, 1, lambda *_: saves.append(captured(feed)))
    PIPELINES["shorter"] = (lambda: numbers().take(3).batch(2), None)
    try:
        _, feed = feed_of("shorter")
        with pytest.raises(ValueError, match=r"at least 3 batches.*ended after 2"):
            inputs.restore(feed, *saves[3], batch=3)
    finally:
        del PIPELINES["shorter"]


def test_a_saved_state_of_another_pipeline_is_refused() -> None:
    iterator, feed = feed_of("shuffled")
    saves: list[Any] = []
    run(iterator, 1, 1, lambda *_: saves.append(captured(feed)))
    assert saves[1][0]["way"] == "state"
    _, feed = feed_of("interleaved")
    with pytest.raises(ValueError, match="Was the pipeline changed"):
        inputs.restore(feed, *saves[1], batch=1)


def test_damaged_state_is_refused() -> None:
    iterator, feed = feed_of("shuffled")
    saves: list[Any] = []
    run(iterator, 1, 1, lambda *_: saves.append(captured(feed)))
    state, arrays = saves[1]
    for damaged in (
        arrays["input/state"][:100],
        arrays["input/state"][:0],
        arrays["input/state"][::-1].copy(),
    ):
        _, feed = feed_of("shuffled")
        with pytest.raises(ValueError, match="saved position"):
            inputs.restore(feed, state, {**arrays, "input/state": damaged}, batch=1)


def test_a_state_that_would_cost_the_grace_period_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_size, "STATE_LIMIT", 10)
    iterator, feed = feed_of("shuffled")
    saves: list[Any] = []
    run(iterator, 1, 1, lambda *_: saves.append(captured(feed)))
    assert {state["way"] for state, _ in saves} <= {"new", "replay"}
    assert all(sum(array.nbytes for array in arrays.values()) < 10_000 for _, arrays in saves)


def test_a_buffer_that_would_cost_the_grace_period_is_not_even_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(input_size, "ELEMENT_LIMIT", N - 1)
    iterator, feed = feed_of("shuffled, prefetched")

    def write(iterator: Any) -> bytes:
        raise AssertionError("the buffer was written")

    monkeypatch.setattr(datasets, "iterator_state", write)
    ways: set[str] = set()
    run(iterator, 1, 1, lambda *_: ways.add(captured(feed)[0]["way"]))
    assert ways == {"new"}
    monkeypatch.undo()
    monkeypatch.setattr(input_size, "ELEMENT_LIMIT", N - 1)
    check_everywhere("shuffled, prefetched", 1)


def test_a_buffer_for_which_the_user_makes_room_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_size, "ELEMENT_LIMIT", N - 1)
    monkeypatch.setattr(input_size, "STATE_LIMIT", 10)
    ways: dict[object, set[str]] = {}
    for room in ("auto", 10_000_000, 10):
        iterator, feed = feed_of("shuffled, prefetched", limit=input_size.chosen(room))
        found = ways.setdefault(room, set())
        run(iterator, 1, 1, lambda *_, feed=feed, found=found: found.add(captured(feed)[0]["way"]))
    assert ways == {"auto": {"new"}, 10_000_000: {"state", "new"}, 10: {"new"}}


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "all", None, "2GB"])
def test_another_room_for_the_input_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"^Expected input_state to be 'auto', 'replay', or .* Received: "):
        input_size.chosen(wrong)


def test_the_size_of_a_buffer_is_known_without_writing_it() -> None:
    def sizes(dataset: tf.data.Dataset) -> list[tuple[int, int | None]]:
        return list(shuffle_buffers(dataset))

    pictures = tf.data.Dataset.range(100).map(lambda n: (tf.zeros((4, 4, 3)), n))
    assert sizes(pictures.shuffle(1000).batch(2)) == [(100, 4 * 4 * 3 * 4 + 8)]
    assert sizes(pictures.repeat().shuffle(1000)) == [(1000, 4 * 4 * 3 * 4 + 8)]
    names = tf.data.Dataset.from_tensor_slices(["a" * 10, "b" * 30])
    assert sizes(names.shuffle(9)) == [(2, 20)]
    assert sizes(names.map(tf.io.read_file).shuffle(9)) == [(2, None)]


def test_before_anything_was_drawn_there_is_nothing_to_restore() -> None:
    iterator, feed = feed_of("shuffled")
    arrays: dict[str, np.ndarray] = {}
    state = inputs.capture(feed, feed.position(pending=False), arrays)
    whole = run(iterator, 2, 1, lambda *_: None)
    iterator, feed = feed_of("shuffled")
    assert inputs.restore(feed, state, arrays, batch=None) == "nothing was drawn yet"
    assert run(iterator, 2, 1, lambda *_: None) == whole


def test_earlier_validations_are_not_drawn_again_where_the_shuffles_are_counted() -> None:
    _, feed = feed_of("endless, prefetched")
    shuffles = Shuffles(feed.dataset, None)
    counts = shuffles.counts()
    assert counts is not None

    def new() -> Any:
        raise AssertionError("an iterator was made")

    feed.new = new  # type: ignore[method-assign]
    inputs.draw_again(feed, [10] * 50, shuffles, [counts] * 50)
    assert feed.draws == [10] * 50


def test_an_epoch_iterator_of_another_keras_is_refused() -> None:
    with pytest.raises(names.KerasInternalsError, match="_enumerate_iterator"):
        DatasetFeed(object())
