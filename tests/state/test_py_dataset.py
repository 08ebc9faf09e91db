"""A PyDataset goes on in the epoch that was interrupted, in the order of that epoch, at its next batch."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_preempt import PreemptionCallback
from keras_preempt.backend.keras import batches_asked
from keras_preempt.backend.tensorflow.feed import DatasetFeed
from keras_preempt.state import py_dataset, randomness
from tests.state.continued_input import captured_input, continued_input
from tests.state.test_inputs import begin

STEPS, EPOCHS = 5, 3


class Numbers(keras.utils.PyDataset):
    """Shuffles itself between epochs; remembers which batches were asked for."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.order = np.arange(STEPS)
        self.asked: list[int] = []

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return (self.order[index : index + 1],)

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.order)

    def get_state(self) -> dict[str, Any]:
        return {"order": self.order}

    def set_state(self, state: dict[str, Any]) -> None:
        self.order = state["order"]


@pytest.fixture(autouse=True)
def watched() -> Iterator[None]:
    """As while a PreemptionCallback lives."""
    end = batches_asked.watch()
    yield
    end()


def start(kind: type[Numbers] = Numbers, **options: Any) -> tuple[Numbers, Any, DatasetFeed]:
    """What `fit` has when its callbacks are first called, in a new process."""
    keras.utils.set_random_seed(4)
    numbers = kind(**options)
    return numbers, *begin(numbers, shuffle=True)


def epochs(iterator: Any, count: int, before: Callable[[int], None], at: Callable[[int, int], None]) -> Any:
    drawn = []
    for epoch in range(count):
        before(epoch)
        batches: list[int] = []
        for step, _, live in iterator:
            at(epoch, step)
            batches.append(int(next(live)[0][0]))
            random.random()  # As a callback may.
        drawn.append(batches)
    return drawn


def captured(feed: DatasetFeed, step: int | None) -> tuple[Any, dict[str, np.ndarray]]:
    """The input and the random numbers, as they come out of a file."""
    arrays: dict[str, np.ndarray] = {}
    inside = step is not None
    state = captured_input(feed, arrays, inside=inside)
    told = json.loads(json.dumps([state, randomness.capture(arrays)]))
    return told, {name: np.array(array) for name, array in arrays.items()}


@pytest.mark.parametrize("options", [{}, {"workers": 2}], ids=["one thread", "several"])
def test_the_rest_is_the_same_and_nothing_is_asked_for_again(options: dict[str, Any]) -> None:
    saves: dict[tuple[int, int | None], Any] = {}
    _, iterator, feed = start(**options)

    def save(epoch: int, step: int | None) -> None:
        saves[epoch, step] = captured(feed, step)

    def begin(epoch: int) -> None:
        save(epoch, None)
        py_dataset.begin_epoch(feed)

    whole = epochs(iterator, EPOCHS, begin, save)
    assert len({tuple(batches) for batches in whole}) > 1
    for epoch, step in ((0, 2), (1, None), (1, 0), (1, 3)):
        numbers, iterator, feed = start(**options)
        numbers.asked.clear()
        (state, drawn), arrays = saves[epoch, step]
        how = continued_input(feed, state, arrays, batch=step)
        left_out = bool(step)  # Its state, which the batches have left as it was, holds all that it changes.
        assert ("of which nothing was drawn again" in how) == left_out

        def go_on(
            at: int, step: Any = step, drawn: Any = drawn, arrays: Any = arrays, feed: Any = feed
        ) -> None:
            if at == 0:
                randomness.restore(drawn, arrays)
            if at > 0 or step is None:
                py_dataset.begin_epoch(feed)

        rest = epochs(iterator, EPOCHS - epoch, go_on, lambda *_: None)
        assert rest == [whole[epoch][step or 0 :], *whole[epoch + 1 :]], (epoch, step)
        assert len(numbers.asked) == STEPS * (EPOCHS - epoch) - (step if left_out else 0), (epoch, step)


class Sequence(Numbers):
    """What it gives depends on how often it was asked, which its state holds."""

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return (np.array([len(self.asked)]),)

    def get_state(self) -> dict[str, Any]:
        return {"asked": len(self.asked)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.asked = [0] * state["asked"]


class Counting(Numbers):
    """Gives the same again, and counts in its state how often it was asked."""

    def get_state(self) -> dict[str, Any]:
        return {"order": self.order, "asked": len(self.asked)}


class Foreign(Numbers):
    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return ({"x": np.array([object()])},)


@pytest.mark.parametrize("kind", [Sequence, Counting])
def test_batches_that_may_depend_on_those_before_are_drawn_again(kind: type[Numbers]) -> None:
    _, iterator, feed = start(kind)
    saves = []
    epochs(iterator, 1, lambda _: py_dataset.begin_epoch(feed), lambda _, n: saves.append(captured(feed, n)))
    (state, _), arrays = saves[4]
    assert not state["epoch"]["independent"]
    numbers, _, feed = start(kind)
    before = len(numbers.asked)
    assert "4 batches drawn again" in continued_input(feed, state, arrays, batch=4)
    assert len(numbers.asked) - before >= 4


def test_what_cannot_be_compared_is_not_said_to_be_independent_or_others() -> None:
    asked = batches_asked.BatchesAsked()
    for given in (Foreign()[0], (np.zeros(2),)):
        asked.given(given)
    asked.begin_epoch()
    asked.given((np.ones(2),))
    assert not asked.end_epoch(1)
    assert not asked.independent


def test_a_dataset_that_has_become_shorter_is_refused() -> None:
    _, iterator, feed = start()
    saves = []
    epochs(iterator, 1, lambda _: py_dataset.begin_epoch(feed), lambda _, n: saves.append(captured(feed, n)))
    (state, _), arrays = saves[4]
    _, _, feed = start()
    feed.py_dataset.__class__ = type("Short", (Numbers,), {"__len__": lambda self: 2})
    with pytest.raises(ValueError, match=r"at least 4 batches.*ended after 2"):
        continued_input(feed, state, arrays, batch=4)


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_that_are_dropped_before_the_first_step_are_told(
    workers: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "keras_preempt")

    class Squares(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
            return np.full((2, 1), index, "float32"), np.full((2, 1), index**2, "float32")

    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(Squares(workers=workers), epochs=2, verbose=0, callbacks=[PreemptionCallback(tmp_path)])
    said = [line for line in caplog.messages if "They are dropped, so that" in line]
    if workers == 1:
        assert said == []
    else:
        (line,) = said
        assert re.match(r"Keras' threads fetched \d+ batches ahead while it built the model\.", line)
