"""The simplest job, of which every other way is a variation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.ways.way import MIRRORED, ONE, WORKERS, Exact, Way

if TYPE_CHECKING:
    from tests.ways.run import Run

STEPS, BATCH = 6, 8


def samples(count: int = STEPS * BATCH) -> tuple[Any, Any]:
    """Returns `count` samples of 4 numbers and their labels, 0 to 2; the same every time."""
    import numpy as np

    rng = np.random.default_rng(7)
    return rng.normal(size=(count, 4)).astype("float32"), rng.integers(0, 3, size=count).astype("int32")


def dataset(batch: int = BATCH) -> Any:
    """Returns the samples as a finite tf.data with one seeded shuffle, `STEPS` batches."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(samples()).shuffle(64, seed=5).batch(batch, drop_remainder=True)


def model(run: Run, **options: Any) -> Any:
    """Returns a small compiled classifier with dropout and BatchNormalization.

    Args:
        run: Gives the strategy's scope.
        **options: Of ``compile``, on top of Adam, cross-entropy and accuracy.
    """
    import keras

    layers = keras.layers
    with run.scope():
        made = keras.Sequential(
            [
                keras.Input((4,)),
                layers.Dense(5, activation="relu"),
                layers.BatchNormalization(),
                layers.Dropout(0.3),
                layers.Dense(3),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        made.compile(**{"optimizer": "adam", "loss": loss, "metrics": ["accuracy"], **options})
    return made


def _plain(run: Run) -> None:
    run.fit(model(run), dataset(), validation_data=dataset())


WAYS = (
    Way(
        "plain",
        "finite tf.data, one seeded shuffle",
        _plain,
        {ONE: Exact(), MIRRORED: Exact(), WORKERS: Exact()},
    ),
)
