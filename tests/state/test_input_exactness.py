"""What a user is told about the input before the first step."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import grain
import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf

from keras_preempt.state.input_exactness import InputExactness, input_exactness

pytestmark = pytest.mark.usefixtures("fresh_keras")

DATA = tf.data.Dataset.range(8)


class Distributed(tf.distribute.DistributedDataset):  # type: ignore[misc]
    def __init__(self, dataset: Any) -> None:
        self._original_dataset = dataset


def feed(dataset: Any, *, distributed: bool = False, batches: int | None = 8) -> Any:
    nothing = dict.fromkeys(("py_dataset", "snapshots", "grain", "repeats"))
    return SimpleNamespace(
        dataset=Distributed(dataset) if distributed else dataset,
        passed=dataset,
        pipelines=[dataset],
        is_shared=distributed,
        batches=batches,
        is_generator=False,
        changes_itself="",
        why_replayed="",
        is_indexed=False,
        is_coded=False,
        in_workers=(),
        redraws=False,
        by_state=False,
        draws_early=False,
        epoch_iterator=SimpleNamespace(data_adapter=None, steps_per_epoch=None),
        **nothing,
    )


def said_of(exactness: InputExactness) -> str:
    return "; and ".join(". ".join(doubt) for doubt in exactness.doubts)


def assert_found(exactness: InputExactness, found: str | None) -> None:
    """What was found against an exact resume; None: nothing."""
    said = said_of(exactness)
    assert re.search(found, said) if found else not said, said


@pytest.mark.parametrize("distributed", [False, True])
def test_a_seeded_pipeline_is_promised_exact_and_a_shuffle_without_a_seed_never(distributed: bool) -> None:
    assert not input_exactness(feed(DATA.shuffle(8, seed=1), distributed=distributed)).doubts
    assert_found(input_exactness(feed(DATA.shuffle(8).batch(2), distributed=distributed, batches=4)), "seed")


def test_data_of_unknown_length_is_promised_to_be_exact_on_one_device_only() -> None:
    unknown = DATA.filter(lambda x: True)
    assert not input_exactness(feed(unknown, batches=None)).doubts
    assert_found(input_exactness(feed(unknown, distributed=True, batches=None)), "assert_cardinality")


def _augmented(draw: Any, **options: Any) -> tf.data.Dataset:
    return DATA.map(lambda n: (n, draw()), **options)


def _stateless() -> tf.data.Dataset:
    seeds = tf.data.Dataset.random(seed=4)
    return tf.data.Dataset.zip(DATA, seeds).map(lambda n, s: tf.random.stateless_normal((), (s, s)))


def _generator() -> tf.data.Dataset:
    generator = tf.random.Generator.from_seed(1)
    return _augmented(lambda: generator.normal(()))


_NOISE = keras.layers.GaussianNoise(0.5, seed=3)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: DATA.interleave(lambda n: DATA.shuffle(4)), "1 shuffle.*has no seed"),
        (lambda: tf.data.Dataset.sample_from_datasets([DATA, DATA]), "has no seed"),
        (lambda: _augmented(lambda: tf.random.normal(())), "without a seed.*set_random_seed"),
        (
            lambda: _augmented(lambda: tf.random.normal((), seed=3), num_parallel_calls=2),
            "in parallel.*Leave out num_parallel_calls",
        ),
        (_generator, "whose state cannot be saved"),
        (
            lambda: _augmented(lambda: _NOISE(tf.ones((2,)), training=True)),
            "whose state cannot be saved. Move random layers into the model",
        ),
        (lambda: DATA.map(lambda n: n, num_parallel_calls=2, deterministic=False), "deterministic=False"),
        (lambda: DATA.interleave(lambda n: DATA.shuffle(4, seed=1)), None),
        (_stateless, None),
        (lambda: _augmented(lambda: tf.random.normal((), seed=3)), None),
        (lambda: tf.data.Dataset.sample_from_datasets([DATA, DATA], seed=2), None),
        (lambda: DATA.map(lambda n: n, num_parallel_calls=2).prefetch(2).cache(), None),
    ],
)
def test_what_a_restart_cannot_repeat_is_found_anywhere_in_a_pipeline(make: Any, found: str | None) -> None:
    assert_found(input_exactness(feed(make())), found)


def test_python_code_in_a_pipeline_makes_the_promise_conditional() -> None:
    data = DATA.map(lambda n: tf.py_function(lambda m: m, [n], tf.int64))
    found = input_exactness(feed(data))
    assert not found.doubts
    assert "the Python code of the training data gives the same again" in found.condition


class _Dataset(keras.utils.PyDataset):
    def __init__(self, draw: Any = lambda index: np.zeros(3)) -> None:
        super().__init__()
        self._draw = draw

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return (self._draw(index),)


class _Reshuffled(_Dataset):
    def on_epoch_end(self) -> None:
        """Would change the order of the next epoch."""


class _Random(_Dataset):
    def __getitem__(self, index: int) -> Any:
        return (np.random.normal(size=3),)


class _Seeded(_Dataset):
    def __getitem__(self, index: int) -> Any:
        return (np.random.default_rng(index).normal(size=3),)


class _Unlike:
    """Cannot be compared with anything."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    def draw(self) -> None:
        """Draws nothing."""


_unlike_s = _Unlike().draw


class _Ordinary(_Dataset):
    def __getitem__(self, index: int) -> Any:
        _unlike_s()
        return (np.zeros(3),)


def test_the_code_of_a_py_dataset_is_read_without_asking_objects_that_it_names() -> None:
    data = feed(DATA)
    data.py_dataset = _Ordinary()
    assert not input_exactness(data).doubts


def test_a_py_dataset_whose_code_draws_from_a_global_random_state_is_named() -> None:
    for kind, exact in ((_Random, False), (_Seeded, True)):
        data = feed(DATA)
        data.py_dataset = kind()
        found = input_exactness(data)
        assert (not found.doubts) == exact
        assert ("_Random draws from Python's or NumPy's global" in said_of(found)) != exact


def test_a_py_dataset_is_not_asked_for_a_batch_that_training_does_not_ask_for() -> None:
    asked: list[int] = []
    data = feed(DATA)
    data.py_dataset = _Dataset(lambda index: asked.append(index))
    assert not input_exactness(data).doubts
    assert not input_exactness(feed(DATA), _Dataset(lambda index: asked.append(index))).doubts
    assert asked == []


@pytest.mark.parametrize(
    ("make", "found", "is_code"),
    [
        (lambda: DATA.shuffle(8).batch(2), "validation data has no seed", False),
        (lambda: DATA.shuffle(8, seed=1).batch(2), None, False),
        (lambda: (each for each in [1, 2]), "Python generator", False),
        (lambda: _Random(), "_Random draws from Python's or NumPy's global", True),
        (lambda: _Reshuffled(), "_Reshuffled has on_epoch_begin or on_epoch_end", True),
        (lambda: _Dataset(), None, True),
        (lambda: grain.MapDataset.source(np.arange(4)).batch(2), None, True),
        (lambda: (np.zeros(4), np.zeros(4)), None, False),
        (lambda: (pandas.DataFrame({"x": [1.0]}), pandas.Series([1.0])), None, False),
        (lambda: {"x": np.zeros(4)}, None, False),
        (lambda: tf.zeros(4), None, False),
        (lambda: DATA.batch(2), None, False),
        (lambda: None, None, False),
    ],
)
def test_validation_data_that_a_restart_cannot_repeat_are_named_and_python_code_is_exact_if_it_repeats_itself(
    make: Any, found: str | None, is_code: bool
) -> None:
    exactness = input_exactness(feed(DATA.batch(2), batches=4), make())
    assert_found(exactness, found)
    condition = "the Python code of the validation data gives the same again when it is asked again"
    assert exactness.condition == (condition if is_code else "")
