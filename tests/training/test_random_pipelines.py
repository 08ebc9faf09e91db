"""Random operations of a pipeline are named before the first step, or are repeated by the restart."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_preempt import Preempted, PreemptionCallback, TerminationConfig
from tests import fits
from tests.cluster.small_fit import Steps, model_anew

pytestmark = pytest.mark.usefixtures("fresh_keras")

EPOCHS = 2

_KEYS = np.arange(16, dtype="float32")


def _rows() -> tf.data.Dataset:
    return fits.untuned(tf.data.Dataset.from_tensor_slices(_KEYS))


def _pairs(values: Callable[[Any], Any], **options: Any) -> tf.data.Dataset:
    """Rows of two numbers, of which the first comes from a function of the key."""
    return (
        _rows()
        .map(lambda key: (tf.stack([tf.cast(values(key), tf.float32), key]), key[None]), **options)
        .batch(4)
    )


def shuffled(key: Any, seed: int | None = 3) -> Any:
    return tf.random.shuffle(tf.range(4.0), seed=seed)[0]


def cropped(key: Any) -> Any:
    begin, _, _ = tf.image.sample_distorted_bounding_box([20, 20, 3], tf.zeros((1, 1, 4)), seed=5)
    return begin[0]


def candidates(key: Any) -> Any:
    return tf.random.log_uniform_candidate_sampler([[1]], 1, 1, True, 50, seed=5)[0][0]


def pooled(key: Any) -> Any:
    return tf.reduce_sum(tf.nn.fractional_max_pool(tf.reshape(tf.range(64.0), (1, 8, 8, 1)), 1.4, seed=0)[0])


def pooled_in_fixed_regions(key: Any) -> Any:
    return tf.reduce_sum(tf.nn.fractional_max_pool(tf.reshape(tf.range(64.0), (1, 8, 8, 1)), 1.4, seed=7)[0])


@tf.function
def checked(key: Any) -> Any:
    tf.debugging.assert_less(key, 100.0)
    return key


def _interleaved(**options: Any) -> tf.data.Dataset:
    def rows(key: Any) -> tf.data.Dataset:
        made = tf.data.Dataset.from_tensors(key)
        return made.map(lambda each: (tf.stack([shuffled(each), each]), each[None]), **options)

    return _counted(_rows().interleave(rows, cycle_length=2))


def _counted(rows: tf.data.Dataset) -> tf.data.Dataset:
    return rows.apply(tf.data.experimental.assert_cardinality(len(_KEYS))).batch(4)


def fit(directory: Path, data: tf.data.Dataset, strike: tuple[int, int] | None = None) -> list[bytes]:
    fits.forget()
    keras.utils.set_random_seed(1)
    model = model_anew()
    callback = PreemptionCallback(directory, termination=TerminationConfig(exit_fn=lambda: None))
    try:
        model.fit(data, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[Steps(strike), callback])
    except Preempted:
        assert strike is not None
    return [each.numpy().tobytes() for each in (*model.weights, *model.optimizer.variables)]


NAMED = {
    "a shuffle in a map, without a seed": (
        lambda: _pairs(lambda key: shuffled(key, None)),
        r"without a seed \(RandomShuffle in shuffled \(test_random_pipelines.py:\d+\)\)",
    ),
    "a shuffle in a parallel map": (
        lambda: _pairs(shuffled, num_parallel_calls=2),
        r"in parallel \(RandomShuffle in shuffled \(test_random_pipelines.py:\d+\)\)",
    ),
    "a shuffle in a parallel map of an interleave": (
        lambda: _interleaved(num_parallel_calls=2),
        r"in parallel \(RandomShuffle in shuffled \(",
    ),
    "a bounding box in a parallel map": (
        lambda: _pairs(cropped, num_parallel_calls=2),
        r"in parallel \(SampleDistortedBoundingBoxV2 in cropped \(",
    ),
    "candidates in a parallel map": (
        lambda: _pairs(candidates, num_parallel_calls=2),
        r"in parallel \(LogUniformCandidateSampler in candidates \(",
    ),
    "pooling in other regions each time": (
        lambda: _pairs(pooled),
        r"without a seed \(FractionalMaxPool in pooled \(",
    ),
    "a map whose order is free": (
        lambda: _pairs(checked, num_parallel_calls=2, deterministic=False),
        r"it has a map whose order is free \(deterministic=False, or shuffle_files=True",
    ),
    "an interleave whose order is free": (
        lambda: _counted(
            _rows().interleave(
                lambda key: tf.data.Dataset.from_tensors((tf.stack([key, key]), key[None])),
                num_parallel_calls=2,
                deterministic=False,
            )
        ),
        "it has an interleave whose order is free",
    ),
}


@pytest.mark.parametrize("named", NAMED)
def test_what_a_restart_cannot_repeat_is_named_with_the_line_of_the_user(
    named: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make, found = NAMED[named]
    tf.random.set_seed(None)  # With a global one, an operation has a seed although nobody gives it one.
    fit(tmp_path, make())
    (promised,) = [line for line in caplog.messages if "Watching over" in line]
    assert "NOT exact after a preemption" in promised
    assert re.search(found, promised), promised


EXACT = {
    "a shuffle in a map": lambda: _pairs(shuffled),
    "a shuffle in a map of an interleave": _interleaved,
    "a bounding box": lambda: _pairs(cropped),
    "candidates": lambda: _pairs(candidates),
    "pooling in fixed regions": lambda: _pairs(pooled_in_fixed_regions, num_parallel_calls=2),
    "a function with an assertion": lambda: _pairs(checked, num_parallel_calls=2),
}


@pytest.mark.parametrize("named", EXACT)
def test_what_a_restart_repeats_is_promised_and_repeated(
    named: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make = EXACT[named]
    undisturbed = fit(tmp_path / "undisturbed", make())
    fit(tmp_path / "preempted", make(), strike=(1, 2))
    assert fit(tmp_path / "preempted", make()) == undisturbed
    promised = [line for line in caplog.messages if "Watching over" in line]
    assert all("After a preemption: bit-identical" in line for line in promised), promised
