"""Restored at any position, in fresh objects, the input gives the same rest of the epoch and the same later ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import keras
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
from tests.state.continued_input import captured_input, continued_input

pytestmark = pytest.mark.filterwarnings("ignore:.*ran out of data")

Epochs = list[list[list[int]]]
"""Batches of numbers, by epoch."""

N = 7
EPOCHS = 3


def numbers() -> tf.data.Dataset:
    return tf.data.Dataset.range(N)


def shuffled() -> tf.data.Dataset:
    return numbers().shuffle(N, seed=3)


def two_inputs() -> tf.data.Dataset:
    both = tf.data.Dataset.zip((shuffled(), numbers().shuffle(N, seed=5)))
    return both.map(lambda one, other: one * 100 + other).batch(3)


def interleaved() -> tf.data.Dataset:
    return shuffled().interleave(lambda n: tf.data.Dataset.from_tensors(n).repeat(2), 3).batch(4)


def in_python() -> tf.data.Dataset:
    return shuffled().map(lambda n: tf.py_function(lambda m: m, [n], tf.int64)).batch(2)


def alike() -> tf.data.Dataset:
    return numbers().shuffle(N, seed=3, reshuffle_each_iteration=False).batch(2)


def twice() -> tf.data.Dataset:
    return numbers().shuffle(5, seed=3).map(lambda n: n * 2).batch(2).shuffle(3, seed=4)


def in_parallel() -> tf.data.Dataset:
    return shuffled().map(lambda n: n + 1, num_parallel_calls=2).batch(2).prefetch(2)


def some(data: tf.data.Dataset) -> tf.data.Dataset:
    """Of a length that nobody knows."""
    return data.filter(lambda n: n % 3 != 0)


PIPELINES: dict[str, tuple[Callable[[], tf.data.Dataset], int | None]] = {
    "plain": (lambda: numbers().batch(2), None),
    "shuffled": (lambda: shuffled().batch(2, drop_remainder=True), None),
    "shuffled in a small buffer": (lambda: numbers().shuffle(4, seed=3).batch(2), None),
    "shuffled alike in each epoch": (alike, None),
    "two shuffles": (twice, None),
    "shuffled, prefetched": (lambda: shuffled().batch(2).prefetch(2), None),
    "cached, shuffled, prefetched": (lambda: numbers().cache().shuffle(N, seed=3).batch(2).prefetch(1), None),
    "shuffled, mapped in parallel": (in_parallel, None),
    "unknown length": (lambda: some(numbers()).shuffle(N, seed=3).batch(2), None),
    "unknown length, prefetched": (lambda: some(shuffled()).batch(2).prefetch(2), None),
    "repeated twice": (lambda: shuffled().repeat(2).batch(4), None),
    "repeated twice, cut": (lambda: shuffled().repeat(4).batch(4), 3),
    "endless": (lambda: shuffled().repeat().batch(2), 4),
    "endless, prefetched": (lambda: shuffled().repeat().batch(2).prefetch(3), 4),
    "interleaved": (interleaved, None),
    "one shuffle of two inputs": (two_inputs, None),
    "a python function": (in_python, None),
}


def begin(
    data: Any, strategy: tf.distribute.Strategy | None = None, limit: Any = None, **options: Any
) -> tuple[Any, DatasetFeed]:
    """What `fit` has when its callbacks are first called; `options` are those of Keras' epoch iterator."""
    iterator = TFEpochIterator(
        x=data,
        distribute_strategy=strategy or tf.distribute.get_strategy(),
        **{"steps_per_execution": 1, **options},
    )
    iterator.reset()
    feed = DatasetFeed(iterator)
    inputs.record_states(feed, limit=limit)
    return iterator, feed


def feed_of(name: str, steps_per_execution: int = 1, **options: Any) -> tuple[Any, DatasetFeed]:
    """That of a pipeline, over new objects."""
    dataset, steps = PIPELINES[name]
    return begin(dataset(), steps_per_epoch=steps, steps_per_execution=steps_per_execution, **options)


def run(
    iterator: Any,
    epochs: int,
    at_boundary: Callable[[int, int, int], None] = lambda *_: None,
    per_execution: int = 1,
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


def captured(feed: DatasetFeed, *, inside: bool = True) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Inside of an epoch before an execution, or before an epoch; as it comes out of a file."""
    arrays: dict[str, np.ndarray] = {}
    state = captured_input(feed, arrays, inside=inside)
    return json.loads(json.dumps(state)), {name: array.copy() for name, array in arrays.items()}


Saves = list[tuple[int, int, int, Any]]
"""Of each boundary: epoch, step, batches drawn in this epoch, and what was captured."""


def saving(iterator: Any, feed: DatasetFeed, epochs: int, per_execution: int = 1) -> tuple[Epochs, Saves]:
    """Trains; returns what was drawn, and what was captured at every boundary."""
    saves: Saves = []
    drawn = run(iterator, epochs, lambda *at: saves.append((*at, captured(feed))), per_execution)
    return drawn, saves


def saves_of(name: str, epochs: int = 1, per_execution: int = 1, **options: Any) -> tuple[Epochs, Saves]:
    """The same over new objects of a pipeline."""
    return saving(*feed_of(name, per_execution, **options), epochs, per_execution)


def ways_of(name: str, **options: Any) -> set[str]:
    return {state["way"] for *_, (state, _) in saves_of(name, **options)[1]}


@pytest.mark.parametrize("name", PIPELINES)
def test_restored_anywhere_the_rest_of_the_epoch_and_all_later_ones_are_the_same(name: str) -> None:
    check_everywhere(name, 1)


@pytest.mark.parametrize("name", ["shuffled", "unknown length", "endless, prefetched"])
def test_restored_between_executions_of_several_steps_the_rest_is_the_same(name: str) -> None:
    check_everywhere(name, 2)


def but_for(kept: tuple[str, ...], names: Iterable[str] = PIPELINES) -> list[Any]:
    """Parameters: those that are kept stay in `make test`, the others are run by `make chaos`."""
    return [pytest.param(name, marks=() if name in kept else pytest.mark.chaos) for name in names]


_REPLAYED = ("interleaved", "two shuffles", "unknown length", "repeated twice, cut", "endless, prefetched")


@pytest.mark.parametrize("name", but_for(_REPLAYED))
def test_replayed_because_the_user_wants_it_the_rest_is_the_same(name: str) -> None:
    ways = check_everywhere(name, 1, input_size.limit_of("replay"))
    assert ways == {"replay"}


def check_everywhere(name: str, per_execution: int, limit: input_size.StateLimit | None = None) -> set[str]:
    """Saves and restores at every boundary; returns the ways in which it was saved."""
    whole, saves = saves_of(name, EPOCHS, per_execution, limit=limit)
    assert sum(map(len, whole)) >= 6
    again, _ = feed_of(name, per_execution)
    assert run(again, EPOCHS, per_execution=per_execution) == whole  # else nothing below would mean anything
    for epoch, step, drawn, (state, arrays) in saves:
        if epoch > 1:  # the last has no later ones to compare
            continue
        iterator, feed = feed_of(name, per_execution)
        continued_input(feed, state, arrays, batch=step)
        steps: list[int] = []
        rest = run(iterator, EPOCHS - epoch, lambda _, at, __, steps=steps: steps.append(at), per_execution)
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
    found = ways_of(name)
    assert found <= ways
    assert ways & found == ways or "state" in found


def test_a_position_that_was_restored_can_be_saved_and_restored_again() -> None:
    for name in ("shuffled, prefetched", "endless", "unknown length"):
        iterator, feed = feed_of(name)
        whole = run(iterator, 2)
        state: Any = None
        for step in range(len(whole[0])):  # preempted before every single step
            iterator, feed = feed_of(name)
            if state is not None:
                continued_input(feed, *state, batch=step - 1 if step else 0)
            rest, saves = saving(iterator, feed, 2)
            assert rest[0] == whole[0][max(0, step - 1) :], (name, step)
            assert rest[1] == whole[1], (name, step)
            (state,) = [saved for epoch, at, _, saved in saves if (epoch, at) == (0, step)]


def test_between_epochs_and_before_anything_was_drawn_what_follows_is_the_same() -> None:
    for name in ("shuffled", "shuffled, prefetched", "endless", "unknown length"):
        iterator, feed = feed_of(name)
        begun = captured(feed, inside=False)
        first = run(iterator, 1)
        state, arrays = captured(feed, inside=False)
        second = run(iterator, 1)
        iterator, feed = feed_of(name)
        continued_input(feed, state, arrays, batch=None)
        assert run(iterator, 1) == second, (name, state["way"], first)
        iterator, feed = feed_of(name)
        assert continued_input(feed, *begun, batch=None) == "nothing was drawn yet"
        assert run(iterator, 2) == first + second, name


def test_a_pipeline_that_has_become_shorter_is_refused() -> None:
    _, saves = saves_of("a python function")
    _, feed = begin(numbers().take(3).batch(2))
    with pytest.raises(ValueError, match=r"at least 3 batches.*ended after 2"):
        continued_input(feed, *saves[3][-1], batch=3)


def test_a_saved_state_of_another_pipeline_or_a_damaged_one_is_refused() -> None:
    _, saves = saves_of("shuffled")
    state, arrays = saves[1][-1]
    assert state["way"] == "state"
    _, feed = feed_of("interleaved")
    with pytest.raises(ValueError, match="Was the pipeline changed"):
        continued_input(feed, state, arrays, batch=1)
    saved = arrays["input/state"]
    for damaged in (saved[:100], saved[:0], saved[::-1].copy()):
        _, feed = feed_of("shuffled")
        with pytest.raises(ValueError, match="saved position"):
            continued_input(feed, state, {**arrays, "input/state": damaged}, batch=1)


def test_a_buffer_that_costs_the_grace_period_is_not_even_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_size, "ELEMENT_LIMIT", N - 1)
    iterator, feed = feed_of("shuffled, prefetched")
    ways: set[str] = set()
    with monkeypatch.context() as unwritable:
        written = AssertionError("the buffer was written")
        unwritable.setattr(datasets, "iterator_state", mock.Mock(side_effect=written))
        run(iterator, 1, lambda *_: ways.add(captured(feed)[0]["way"]))
    assert ways == {"new"}
    check_everywhere("shuffled, prefetched", 1)


def test_a_state_that_is_too_large_is_left_out_and_a_buffer_for_which_the_user_makes_room_is_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(input_size, "STATE_LIMIT", 10)
    assert ways_of("shuffled") <= {"new", "replay"}
    monkeypatch.setattr(input_size, "ELEMENT_LIMIT", N - 1)
    ways = {
        room: ways_of("shuffled, prefetched", limit=input_size.limit_of(room))
        for room in ("auto", 10_000_000, 10)
    }
    with_room = ways.pop(
        10_000_000
    )  # TensorFlow's threads may have filled the buffer before the first batch is asked for.
    assert "state" in with_room <= {"state", "new"}
    assert ways == {"auto": {"new"}, 10: {"new"}}


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "all", None, "2GB"])
def test_another_room_for_the_input_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"^Expected input_state to be 'auto', 'replay', or .* Received: "):
        input_size.limit_of(wrong)


def test_the_size_of_a_buffer_is_known_without_writing_it() -> None:
    def sizes(dataset: tf.data.Dataset) -> list[tuple[int, int | None]]:
        return list(shuffle_buffers(dataset))

    pictures = tf.data.Dataset.range(100).map(lambda n: (tf.zeros((4, 4, 3)), n))
    assert sizes(pictures.shuffle(1000).batch(2)) == [(100, 4 * 4 * 3 * 4 + 8)]
    assert sizes(pictures.repeat().shuffle(1000)) == [(1000, 4 * 4 * 3 * 4 + 8)]
    names = tf.data.Dataset.from_tensor_slices(["a" * 10, "b" * 30])
    assert sizes(names.shuffle(9)) == [(2, 20)]
    assert sizes(names.map(tf.io.read_file).shuffle(9)) == [(2, None)]


def test_earlier_validations_are_not_drawn_again_where_the_shuffles_are_counted() -> None:
    _, feed = feed_of("endless, prefetched")
    shuffles = Shuffles(feed.dataset, None)
    counts = shuffles.counts()
    assert counts is not None
    vars(feed)["new"] = None  # Nobody may make an iterator.
    inputs.draw_again(feed, [10] * 50, shuffles, [counts] * 50)
    assert feed.draws == [10] * 50


def test_an_epoch_iterator_of_another_keras_is_refused() -> None:
    with pytest.raises(names.KerasInternalsError, match="_enumerate_iterator"):
        DatasetFeed(object())


REPLAYED: dict[str, tuple[Callable[[], Any], int | None, tuple[int, str] | None]] = {
    "what can be saved": (lambda: numbers().batch(2), None, None),
    "what cannot be": (PIPELINES["a python function"][0], None, (4 * 5, "at the end of training")),
    "a generator": (lambda: ((np.zeros((2, 1)),) for _ in range(99)), 6, (6 * 5, "at the end of training")),
    "a PyDataset": (lambda: Constant(), None, (4, "at the end of an epoch")),
    "a PyDataset cut into epochs": (lambda: Constant(), 3, (3 * 5, "at the end of training")),
    "a PyDataset that draws": (lambda: Drawn(), None, (4, "at the end of an epoch")),
    "arrays": (lambda: np.zeros((8, 1)), None, None),
}


class Constant(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return (np.zeros((2, 1)),)


class Drawn(Constant):
    def __getitem__(self, index: int) -> Any:
        return (np.random.normal(size=(2, 1)),)


@pytest.mark.parametrize("kind", REPLAYED)
def test_it_is_known_how_many_batches_a_resume_draws_again_at_most(kind: str) -> None:
    make, steps, expected = REPLAYED[kind]
    data = make()
    _, feed = begin(data, steps_per_epoch=steps, batch_size=2 if isinstance(data, np.ndarray) else None)
    assert inputs.drawn_again_at_most(feed, epochs=5) == expected


def test_where_the_user_wants_a_replay_it_is_known_too() -> None:
    _, feed = feed_of("shuffled", limit=input_size.limit_of("replay"))
    assert inputs.drawn_again_at_most(feed, epochs=5) == (3, "at the end of an epoch")
