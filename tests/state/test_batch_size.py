"""How many samples a step takes is seen through a pipeline, so that other workers can count in samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_preempt import PreemptionCallback
from keras_preempt.backend.tensorflow.datasets import batch_size
from tests.cluster.small_fit import make_model

Data = tf.data.Dataset


def batched() -> Data:
    return Data.range(20).map(lambda n: (tf.stack([n, n]), n)).batch(6).map(lambda x, y: (x + 1, y))


@pytest.mark.parametrize(
    "behind",
    [
        lambda data: data,
        lambda data: data.map(lambda x, y: (x, y), num_parallel_calls=2),
        lambda data: data.cache(),
        lambda data: data.shuffle(3, seed=1),
        lambda data: data.skip(1).take(2),
        lambda data: data.repeat(),
        lambda data: data.with_options(tf.data.Options()),
        lambda data: data.prefetch(2),
    ],
)
def test_it_is_seen_behind_what_keeps_batches(behind: Callable[[Data], Data]) -> None:
    assert batch_size(behind(batched())) == 6


@pytest.mark.parametrize(
    "data",
    [
        Data.range(20),
        Data.from_generator(lambda: iter([[1, 2]]), output_signature=tf.TensorSpec([None], tf.int32)),
        batched().flat_map(lambda x, y: Data.from_tensor_slices((x, y))),
    ],
)
def test_it_is_not_guessed(data: Data) -> None:
    assert batch_size(data) is None


class Sequence(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return np.ones((5, 2)), np.ones((5, 1))


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ({"x": np.ones((20, 2)), "y": np.ones((20, 1)), "batch_size": 6}, (6, 4)),
        ({"x": Data.from_tensor_slices((np.ones((20, 2)), np.ones((20, 1)))).batch(6)}, (6, 4)),
        ({"x": batched().map(lambda x, y: (x, y[:, None])).repeat(), "steps_per_epoch": 3}, (6, 3)),
        ({"x": Sequence()}, (None, 4)),
    ],
    ids=["arrays", "a dataset", "an endless dataset", "a PyDataset"],
)
def test_a_run_keeps_it_where_it_is_seen(
    x: dict[str, Any], expected: tuple[int | None, int], tmp_path: Path
) -> None:
    make_model().fit(**x, shuffle=False, callbacks=[PreemptionCallback(tmp_path)], verbose=0)
    setup = json.loads((tmp_path / "run.json").read_text())["setup"]
    assert (setup["global_batch"], setup["batches"]) == expected
    assert (setup["workers"], setup["replicas"], setup["built_from"]) == (1, 1, 0)
