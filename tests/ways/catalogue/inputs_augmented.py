"""Pipelines of tf.data that augment their samples at random, or keep what they have made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.ways.catalogue import basics
from tests.ways.catalogue.inputs_tfdata import BATCH, forget_seeds, job, on_all, slices
from tests.ways.way import Exact, Warned, Way

if TYPE_CHECKING:
    from tests.ways.run import Run


def _cached() -> Any:
    return slices().map(lambda x, y: (x * 2, y)).cache().shuffle(64, seed=5).batch(BATCH).prefetch(1)


def _stateless(x: Any, y: Any, seed: Any) -> Any:
    import tensorflow as tf

    return x + tf.random.stateless_normal((4,), tf.stack([seed, seed])), y


def _stateless_counter() -> Any:
    import tensorflow as tf

    numbered = tf.data.Dataset.zip((slices().shuffle(64, seed=5), tf.data.Dataset.counter()))
    return numbered.map(lambda sample, number: _stateless(*sample, number)).batch(BATCH)


def _random_dataset() -> Any:
    import tensorflow as tf

    seeds = tf.data.Dataset.random(seed=8, rerandomize_each_iteration=True)
    numbered = tf.data.Dataset.zip((slices().shuffle(64, seed=5), seeds))
    return numbered.map(lambda sample, number: _stateless(*sample, number)).batch(BATCH)


def _random_dataset_alike() -> Any:
    import tensorflow as tf

    numbered = tf.data.Dataset.zip((slices().shuffle(64, seed=5), tf.data.Dataset.random(seed=8)))
    return numbered.map(lambda sample, number: _stateless(*sample, number)).batch(BATCH)


def _stateful_operation() -> Any:
    import tensorflow as tf

    return slices().shuffle(64, seed=5).map(lambda x, y: (x + tf.random.normal((4,)), y)).batch(BATCH)


def _stateful_unseeded() -> Any:
    import tensorflow as tf

    forget_seeds()
    return slices().shuffle(64, seed=5).map(lambda x, y: (x + tf.random.normal((4,)), y)).batch(BATCH)


def _random_generator() -> Any:
    import tensorflow as tf

    generator = tf.random.Generator.from_seed(3)
    return slices().shuffle(64, seed=5).map(lambda x, y: (x + generator.normal((4,)), y)).batch(BATCH)


def _augmentation_layer() -> Any:
    import keras

    augment = keras.layers.GaussianNoise(0.5, seed=3)
    return slices().shuffle(64, seed=5).batch(BATCH).map(lambda x, y: (augment(x, training=True), y))


def _augmented() -> Any:
    import tensorflow as tf

    return slices().map(lambda x, y: (x + tf.random.normal((4,)), y))


def _cached_augmentation() -> Any:
    return _augmented().cache().shuffle(64, seed=5).batch(BATCH)


def _cached_file(run: Run) -> None:
    data = _augmented().cache(str(run.work / f"cache-{run.worker}")).shuffle(64, seed=5).batch(BATCH)
    run.fit(basics.model(run), data, validation_data=basics.dataset())


def _snapshot(run: Run) -> None:
    import tensorflow as tf

    folder = str(run.work / f"saved-{run.worker}")
    if not tf.io.gfile.exists(folder):
        _augmented().save(folder)
    data = tf.data.Dataset.load(folder).shuffle(64, seed=5).batch(BATCH)
    run.fit(basics.model(run), data, validation_data=basics.dataset())


_STATE_OUTSIDE = Warned(
    "the generator's state is outside the pipeline and is not saved. Use `tf.random.stateless_*`",
    "NOT exact.*whose state cannot be saved",
)
WAYS = (
    Way("cached", "tf.data, `cache()` in memory", job(_cached), on_all(Exact())),
    Way(
        "random-dataset",
        "augmentation with `tf.random.stateless_*`, seeded by `tf.data.Dataset.random(seed=...)`",
        job(_random_dataset),
        on_all(Exact()),
    ),
    Way(
        "random-dataset-alike",
        "the same augmentation in every epoch",
        job(_random_dataset_alike),
        on_all(Exact()),
    ),
    Way(
        "stateless-counter",
        "augmentation with `tf.random.stateless_*`, seeded by `tf.data.Dataset.counter()`",
        job(_stateless_counter),
        on_all(Exact()),
    ),
    Way(
        "stateful-operation",
        "augmentation with `tf.random.*` in a `map` that is not parallel, after `keras.utils.set_random_seed`",
        job(_stateful_operation),
        on_all(Exact()),
    ),
    Way(
        "stateful-unseeded",
        "augmentation with `tf.random.*` without a seed",
        job(_stateful_unseeded),
        on_all(_STATE_OUTSIDE),
    ),
    Way(
        "random-generator",
        "augmentation with a `tf.random.Generator`",
        job(_random_generator),
        on_all(_STATE_OUTSIDE),
    ),
    Way(
        "augmentation-layer",
        "augmentation with a random Keras layer in `map`",
        job(_augmentation_layer),
        on_all(_STATE_OUTSIDE),
    ),
    Way(
        "cached-augmentation",
        "random augmentation, then `cache()` in memory",
        job(_cached_augmentation),
        on_all(Exact()),
    ),
    Way("cached-file", "random augmentation, then `cache(file)`", _cached_file, on_all(Exact())),
    Way(
        "snapshot",
        "random augmentation written once with `dataset.save`, then `tf.data.Dataset.load`",
        _snapshot,
        on_all(Exact()),
    ),
)
