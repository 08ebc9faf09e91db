"""What TensorFlow draws ahead, asked for or not, is known before anything is drawn."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_preempt.backend.tensorflow.datasets import draws_ahead, ingredients

SIZE = 4
"""Elements in a batch."""


class Counted:
    """Counts its draws, and knows when there are more than one batch takes."""

    def __init__(self) -> None:
        self.draws = 0
        self.ahead = threading.Event()

    def draw(self) -> int:
        self.draws += 1
        if self.draws > SIZE:
            self.ahead.set()
        return self.draws

    def generator(self) -> tf.data.Dataset:
        drawn = (self.draw() for _ in range(10 * SIZE))
        return tf.data.Dataset.from_generator(lambda: drawn, output_signature=tf.TensorSpec((), tf.int64))

    def map(self, **options: Any) -> tf.data.Dataset:
        numbers = tf.data.Dataset.range(10 * SIZE)
        return numbers.map(lambda number: tf.numpy_function(self.draw, [], tf.int64), **options)

    def map_of_batches(self) -> tf.data.Dataset:
        def drawn(numbers: Any) -> Any:
            return tf.numpy_function(lambda: np.array([self.draw() for _ in range(SIZE)]), [], tf.int64)

        return tf.data.Dataset.range(10 * SIZE).batch(SIZE).map(drawn)


def with_options(dataset: tf.data.Dataset, tuned: bool | None, **choices: bool) -> tf.data.Dataset:
    options = tf.data.Options()
    if tuned is not None:
        options.autotune.enabled = tuned
    for name, choice in choices.items():
        setattr(options.experimental_optimization, name, choice)
    return dataset.with_options(options)


def scalar(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.map(lambda number: tf.ensure_shape(number, ()))


AHEAD: dict[str, Callable[[Counted], tf.data.Dataset]] = {
    "as most write it": lambda it: it.generator().batch(SIZE),
    "a map of batches": lambda it: it.map_of_batches(),
    "a map and a batch": lambda it: it.map().batch(SIZE),
    "a prefetch that is asked for": lambda it: with_options(it.generator().batch(SIZE).prefetch(1), False),
    "a parallel map": lambda it: with_options(it.map(num_parallel_calls=2).batch(SIZE), False),
    "a map that is made one with the batch": lambda it: with_options(it.map().batch(SIZE), False),
    "one that a ragged batch is made of": lambda it: with_options(scalar(it.map()).ragged_batch(SIZE), False),
    "a prefetch among the optimizations": lambda it: with_options(
        it.generator().batch(SIZE), None, apply_default_optimizations=False, inject_prefetch=True
    ),
}

AS_USED: dict[str, Callable[[Counted], tf.data.Dataset]] = {
    "nothing is tuned": lambda it: with_options(it.generator().batch(SIZE), False),
    "no prefetch is put in": lambda it: with_options(it.generator().batch(SIZE), None, inject_prefetch=False),
    "no optimizations": lambda it: with_options(
        it.map().batch(SIZE), None, apply_default_optimizations=False
    ),
    "a map of batches, untuned": lambda it: with_options(it.map_of_batches(), False),
    "a map that is left alone": lambda it: with_options(
        it.map().batch(SIZE), False, map_and_batch_fusion=False
    ),
}


def expected(dataset: tf.data.Dataset) -> bool:
    return draws_ahead(dataset, [part.name for part in ingredients(dataset) if not part.where])


@pytest.mark.parametrize("named", AHEAD)
def test_what_is_drawn_ahead_is_known(named: str) -> None:
    counted = Counted()
    dataset = AHEAD[named](counted)
    assert expected(dataset)
    iterator = iter(dataset)
    next(iterator)
    assert counted.ahead.wait(60)


@pytest.mark.parametrize("named", AS_USED)
def test_what_is_drawn_as_it_is_used_is_known(named: str) -> None:
    counted = Counted()
    dataset = AS_USED[named](counted)
    assert not expected(dataset)
    iterator = iter(dataset)
    next(iterator)
    assert not counted.ahead.wait(0.2)
    assert counted.draws == SIZE
