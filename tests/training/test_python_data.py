"""What the Python code of data draws from a global random state is named, unless a restart draws it again."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grain
import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_preempt import Preempted, PreemptionCallback, TerminationConfig
from tests import fits
from tests.cluster.small_fit import Steps, make_data, model_anew

# Keras takes every end of Grain data for a want of it.
pytestmark = [pytest.mark.usefixtures("fresh_keras"), pytest.mark.filterwarnings("ignore:.*ran out of data")]

EPOCHS, STEPS = 2, 4
SPEC = (tf.TensorSpec((2,), tf.float32), tf.TensorSpec((1,), tf.float32))


def noise() -> Any:
    return np.random.normal(size=2).astype("float32")


def rows(draw: Callable[[], Any] = noise) -> Iterator[Any]:
    for _ in range(4 * STEPS):
        x = draw()
        yield x, x[:1]


def endless() -> Iterator[Any]:
    while True:
        x = np.array([[random.random(), random.gauss(0, 1)]] * 4, "float32")
        yield x, x[:, :1]


def endless_of_its_own() -> Iterator[Any]:
    draws = np.random.default_rng(3)
    while True:
        x = draws.normal(size=(4, 2)).astype("float32")
        yield x, x[:, :1]


def imported() -> Any:
    import numpy.random as drawing

    return drawing.rand(2).astype("float32")


def reseeded() -> Any:
    np.random.seed(5)
    return noise()


class Source:
    """Yields rows by a method that calls another one."""

    def rows(self) -> Iterator[Any]:
        return rows(lambda: self.one())

    def one(self) -> Any:
        return noise()


class Reader:
    """Reads a sample with another object's method."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __call__(self) -> Iterator[Any]:
        for _ in range(4 * STEPS):
            x = self.source.one()
            yield x, x[:1]


class Counting:
    def one(self) -> Any:
        return np.arange(2, dtype="float32")


def by_default(make: Callable[[], Iterator[Any]]) -> tf.data.Dataset:
    made = tf.data.Dataset.from_generator(make, output_signature=SPEC)
    return made.apply(tf.data.experimental.assert_cardinality(4 * STEPS)).batch(4)


def piped(make: Callable[[], Iterator[Any]]) -> tf.data.Dataset:
    return fits.untuned(by_default(make))


def mapped(draw: Callable[..., Any], **options: Any) -> tf.data.Dataset:
    def augmented(number: Any) -> Any:
        x = tf.ensure_shape(tf.numpy_function(draw, [], tf.float32), (2,))
        return x, x[:1]

    return fits.untuned(tf.data.Dataset.range(4 * STEPS).map(augmented, **options).batch(4))


def as_written(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Without what TensorFlow would put into it or change in it."""
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.with_options(options)


def noisy_row(_: Any) -> Any:
    x = noise()
    return x, x[:1]


class NoisyRows(grain.transforms.Map):
    def map(self, element: Any) -> Any:
        return noisy_row(element)


class NoisySource:
    """A source of Grain that draws a row whenever it is asked for one."""

    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: Any) -> Any:
        return noisy_row(index)


def loader(source: Any, *operations: Any) -> grain.DataLoader:
    sampler = grain.samplers.IndexSampler(len(source), grain.sharding.NoSharding(), num_epochs=1, seed=0)
    batches = grain.transforms.Batch(4)
    return grain.DataLoader(data_source=source, sampler=sampler, operations=[*operations, batches])


def in_grain(*maps: Any) -> grain.MapDataset:
    made = grain.MapDataset.range(4 * STEPS)
    for each in maps:
        made = made.map(each)
    return made.batch(4)


class Noisy(keras.utils.PyDataset):
    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Any:
        x = self._augmented(np.ones((4, 2)))
        return x, x[:, :1]

    def _augmented(self, x: Any) -> Any:
        return x * np.random.uniform(size=x.shape)


def fit(
    directory: Path, data: Any, strike: tuple[int, int] | None = None, validation: Any = None
) -> list[bytes]:
    fits.forget()
    keras.utils.set_random_seed(1)
    model = model_anew()
    callback = PreemptionCallback(directory, termination=TerminationConfig(exit_fn=lambda: None))
    steps = STEPS if isinstance(data, Iterator) else None
    try:
        model.fit(
            data,
            epochs=EPOCHS,
            shuffle=False,
            verbose=0,
            validation_data=validation,
            callbacks=[Steps(strike), callback],
            steps_per_epoch=steps,
        )
    except Preempted:
        assert strike is not None
    return [each.numpy().tobytes() for each in (*model.weights, *model.optimizer.variables)]


NAMED: dict[str, tuple[Callable[[], Any], str]] = {
    "a generator": (endless, r"in endless \(test_python_data.py:\d+\)"),
    "from_generator": (lambda: piped(rows).prefetch(2), r"in noise \("),
    "from_generator, which TensorFlow draws ahead by itself": (lambda: by_default(rows), r"in noise \("),
    "from_generator of a method": (lambda: piped(Source().rows).prefetch(2), r"in noise \("),
    "from_generator of an object that asks another": (
        lambda: piped(Reader(Source())).prefetch(2),
        r"in noise \(",
    ),
    "a map that TensorFlow makes one with the batch": (lambda: mapped(noise), r"in noise \("),
    "a map in parallel": (lambda: mapped(noise, num_parallel_calls=2), r"in noise \("),
    "an import in the function": (lambda: mapped(imported).prefetch(2), r"in imported \("),
    "a lambda": (lambda: mapped(lambda: noise() * 2).prefetch(2), r"in noise \("),
    "a map of Grain": (lambda: in_grain(*[lambda x: x] * 9, noisy_row), r"in noise \("),
    "a transformation of Grain": (lambda: loader(range(4 * STEPS), NoisyRows()), r"in noise \("),
    "a source of Grain": (lambda: loader(NoisySource()), r"in noise \("),
    "a PyDataset": (Noisy, r"in _augmented \("),
}


@pytest.mark.parametrize("named", NAMED)
def test_a_draw_ahead_of_training_is_named_with_its_line_and_not_again_at_the_resume(
    named: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make, where = NAMED[named]
    fit(tmp_path, make(), strike=(0, 2))
    (promised,) = [line for line in caplog.messages if "Watching over" in line]
    assert "NOT exact after a preemption: exact except" in promised
    assert re.search(rf"draws from Python's or NumPy's global random state.*{where}", promised), promised
    caplog.clear()
    fit(tmp_path, make())
    assert not [line for line in caplog.messages if line.startswith("NOT exact: ")]


def test_of_a_class_of_keras_nobody_is_told_to_give_it_methods(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flow = tf.keras.preprocessing.image.ImageDataGenerator().flow(
        np.zeros((16, 4, 4, 1)), np.zeros((16, 1)), batch_size=4, seed=3
    )
    model = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    fits.forget()
    model.fit(flow, verbose=0, callbacks=[PreemptionCallback(tmp_path)])
    assert "NumpyArrayIterator, a class of Keras, has on_epoch_begin or on_epoch_end" in caplog.text
    assert "Make the batches in a keras.utils.PyDataset of your own" in caplog.text
    assert "get_state" not in caplog.text


@pytest.mark.parametrize(
    "make",
    [lambda: piped(rows).cache(), lambda: piped(Reader(Source())).cache(), lambda: in_grain(noisy_row)],
)
def test_a_draw_of_validation_data_is_named(
    make: Callable[[], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit(tmp_path, make_data(), validation=make())
    assert re.search(r"NOT exact.*code of the validation data draws from.*\(in noise \(", caplog.text)


def test_validation_data_that_draws_nothing_is_exact_if_it_gives_the_same_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit(tmp_path, make_data(), validation=piped(Reader(Counting())).cache())
    assert "After a preemption: exact if the Python code of the validation data" in caplog.text


EXACT: dict[str, Callable[[], Any]] = {
    "a generator of its own": endless_of_its_own,
    "from_generator, of which nothing is drawn ahead": lambda: piped(rows),
    "a map of which nothing is drawn ahead": lambda: as_written(mapped(noise)),
}


@pytest.mark.parametrize("named", EXACT)
def test_what_is_drawn_again_or_seeded_is_exact_and_not_called_otherwise(
    named: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    undisturbed = fit(tmp_path / "undisturbed", EXACT[named]())
    fit(tmp_path / "preempted", EXACT[named](), strike=(1, 2))
    assert fit(tmp_path / "preempted", EXACT[named]()) == undisturbed
    assert "After a preemption: exact if the Python code of the training data" in caplog.text
    assert "NOT exact" not in caplog.text


def test_code_that_seeds_what_it_draws_from_is_exact_if_it_gives_the_same_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit(tmp_path, mapped(reseeded).prefetch(2))
    assert "After a preemption: exact if the Python code of the training data" in caplog.text


def unseen() -> Any:
    return getattr(np, "random").rand(2).astype("float32")  # noqa: B009


def test_a_draw_that_could_not_be_seen_is_said_at_the_resume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit(tmp_path, mapped(unseen).prefetch(2), strike=(0, 2))
    assert "After a preemption: exact if the Python code of the training data" in caplog.text
    caplog.clear()
    fit(tmp_path, mapped(unseen).prefetch(2))
    assert "NOT exact: the Python code of the training data does not give the same again" in caplog.text
