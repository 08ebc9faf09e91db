"""The simplest job, of which every other way is a variation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.ways.late import keras, np, tf
from tests.ways.way import Run, Way

STEPS, BATCH = 6, 8


def samples(count: int = STEPS * BATCH) -> tuple[Any, Any]:
    """Returns `count` samples of 4 numbers and their labels, 0 to 2; the same every time."""
    rng = np.random.default_rng(7)
    return rng.normal(size=(count, 4)).astype("float32"), rng.integers(0, 3, size=count).astype("int32")


def slices(*more: Any) -> Any:
    """Returns the samples as tf.data, one by one, in order, each with its part of `more`."""
    return tf.data.Dataset.from_tensor_slices((*samples(), *more))


def dataset(*more: Any) -> Any:
    """Returns the samples as a finite tf.data with one seeded shuffle, `STEPS` batches; on torch as a `DataLoader`."""
    if keras.backend.backend() == "torch":
        return loader(*more, generator=seeded(5))
    return slices(*more).shuffle(64, seed=5).batch(BATCH, drop_remainder=True)


def loader(*more: Any, **options: Any) -> Any:
    """Returns the samples as a `DataLoader` of torch, shuffled, with these options, `STEPS` batches."""
    import torch

    data = torch.utils.data.TensorDataset(*map(torch.from_numpy, (*samples(), *more)))
    return torch.utils.data.DataLoader(
        data, **{"batch_size": BATCH, "shuffle": True, "drop_last": True, **options}
    )


def seeded(seed: int) -> Any:
    """Returns a generator of torch."""
    import torch

    return torch.Generator().manual_seed(seed)


def cross_entropy() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(run: Run, make: Callable[[], Any], **options: Any) -> Any:
    """Returns a compiled classifier.

    Args:
        run: Gives the strategy's scope.
        make: Makes it.
        **options: Of ``compile``, on top of Adam, cross-entropy and accuracy.
    """
    with run.scope():
        made = make()
        made.compile(**{"optimizer": "adam", "loss": cross_entropy(), "metrics": ["accuracy"], **options})
    return made


def _classifier() -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(5, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(3),
        ]
    )


def model(run: Run, **options: Any) -> Any:
    """Returns a small one with dropout and BatchNormalization, compiled with these options."""
    return compiled(run, _classifier, **options)


def fit(run: Run, made: Any, data: Any = None, **arguments: Any) -> None:
    """Fits a model to data, that of `dataset` unless it is given, with a validation."""
    run.fit(made, dataset() if data is None else data, validation_data=dataset(), **arguments)


def fitted(make: Callable[[], Any], **arguments: Any) -> Callable[[Run], None]:
    """Returns a job that fits the small model to what `make` returns, without a validation."""
    return lambda run: run.fit(model(run), make(), **arguments)


WAYS = (Way("plain", "finite tf.data, one seeded shuffle", lambda run: fit(run, model(run))),)
