"""Pipelines of tf.data that augment their samples at random, or keep what they have made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.ways.catalogue.basics import BATCH, fit, model, slices
from tests.ways.catalogue.inputs_tfdata import forget_seeds, job
from tests.ways.late import keras, tf
from tests.ways.way import Run, Warned, Way, everywhere


def _cached() -> Any:
    return slices().map(lambda x, y: (x * 2, y)).cache().shuffle(64, seed=5).batch(BATCH).prefetch(1)


def _numbered(numbers: Any) -> Any:
    """Data with noise that each sample's number is the seed of."""

    def augmented(sample: Any, number: Any) -> Any:
        x, y = sample
        return x + tf.random.stateless_normal((4,), tf.stack([number, number])), y

    return tf.data.Dataset.zip((slices().shuffle(64, seed=5), numbers)).map(augmented).batch(BATCH)


def _noisy(noise: Callable[[], Any]) -> Any:
    return slices().shuffle(64, seed=5).map(lambda x, y: (x + noise(), y)).batch(BATCH)


def _stateful() -> Any:
    return _noisy(lambda: tf.random.normal((4,)))


def _stateful_unseeded() -> Any:
    forget_seeds()
    return _stateful()


def _random_generator() -> Any:
    generator = tf.random.Generator.from_seed(3)
    return _noisy(lambda: generator.normal((4,)))


def _augmentation_layer() -> Any:
    augment = keras.layers.GaussianNoise(0.5, seed=3)
    return slices().shuffle(64, seed=5).batch(BATCH).map(lambda x, y: (augment(x, training=True), y))


def _augmented() -> Any:
    return slices().map(lambda x, y: (x + tf.random.normal((4,)), y))


def _cached_augmentation() -> Any:
    return _augmented().cache().shuffle(64, seed=5).batch(BATCH)


def _cached_file(run: Run) -> None:
    data = _augmented().cache(str(run.work / f"cache-{run.worker}")).shuffle(64, seed=5).batch(BATCH)
    fit(run, model(run), data)


def _snapshot(run: Run) -> None:
    folder = str(run.work / f"saved-{run.worker}")
    if not tf.io.gfile.exists(folder):
        _augmented().save(folder)
    data = tf.data.Dataset.load(folder).shuffle(64, seed=5).batch(BATCH)
    fit(run, model(run), data)


_STATE_OUTSIDE = Warned(
    "the generator's state is outside the pipeline and is not saved. Use `tf.random.stateless_*`",
    "NOT exact.*whose state cannot be saved",
)
WAYS = (
    Way("cached", "tf.data, `cache()` in memory", job(_cached)),
    Way(
        "random-dataset",
        "augmentation with `tf.random.stateless_*`, seeded by `tf.data.Dataset.random(seed=...)`",
        job(lambda: _numbered(tf.data.Dataset.random(seed=8, rerandomize_each_iteration=True))),
    ),
    Way(
        "random-dataset-alike",
        "the same augmentation in every epoch",
        job(lambda: _numbered(tf.data.Dataset.random(seed=8))),
    ),
    Way(
        "stateless-counter",
        "augmentation with `tf.random.stateless_*`, seeded by `tf.data.Dataset.counter()`",
        job(lambda: _numbered(tf.data.Dataset.counter())),
    ),
    Way(
        "stateful-operation",
        "augmentation with `tf.random.*` in a `map` that is not parallel, after `keras.utils.set_random_seed`",
        job(_stateful),
    ),
    Way(
        "stateful-unseeded",
        "augmentation with `tf.random.*` without a seed",
        job(_stateful_unseeded),
        everywhere(_STATE_OUTSIDE),
    ),
    Way(
        "random-generator",
        "augmentation with a `tf.random.Generator`",
        job(_random_generator),
        everywhere(_STATE_OUTSIDE),
    ),
    Way(
        "augmentation-layer",
        "augmentation with a random Keras layer in `map`",
        job(_augmentation_layer),
        everywhere(_STATE_OUTSIDE),
    ),
    Way("cached-augmentation", "random augmentation, then `cache()` in memory", job(_cached_augmentation)),
    Way("cached-file", "random augmentation, then `cache(file)`", _cached_file),
    Way(
        "snapshot",
        "random augmentation written once with `dataset.save`, then `tf.data.Dataset.load`",
        _snapshot,
    ),
)
