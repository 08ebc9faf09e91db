"""How many batches a resume draws again at most is known beforehand, whatever the data is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator

from keras_preempt.backend.tensorflow.feed import DatasetFeed
from keras_preempt.state import input_size, inputs
from tests.state.test_inputs import PIPELINES, feed_of, numbers

REPLAYED: dict[str, tuple[Callable[[], Any], int | None, tuple[int, str] | None]] = {
    "what can be saved": (lambda: numbers().batch(2), None, None),
    "what cannot be": (PIPELINES["a python function"][0], None, (4 * 5, "at the end of training")),
    "a generator": (lambda: ((np.zeros((2, 1)),) for _ in range(99)), 6, (6 * 5, "at the end of training")),
    "a PyDataset": (lambda: Constant(), None, None),
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
    iterator = TFEpochIterator(
        x=data,
        batch_size=2 if isinstance(data, np.ndarray) else None,
        distribute_strategy=tf.distribute.get_strategy(),
        steps_per_epoch=steps,
        steps_per_execution=1,
    )
    iterator.reset()
    feed = DatasetFeed(iterator)
    inputs.watch(feed)
    assert inputs.drawn_again_at_most(feed, epochs=5) == expected


def test_where_the_user_wants_a_replay_it_is_known_how_many_batches_that_is() -> None:
    _, feed = feed_of("shuffled", limit=input_size.chosen("replay"))
    assert inputs.drawn_again_at_most(feed, epochs=5) == (3, "at the end of an epoch")
