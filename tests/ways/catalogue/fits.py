"""Ways to call `compile` and `fit`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from tests.ways.catalogue.basics import BATCH, dataset, fit, model, samples
from tests.ways.late import np
from tests.ways.way import MIRRORED, ONE, WORKERS, Exact, KerasFails, Run, Warned, Way


def _compiled(**options: Any) -> Callable[[Run], None]:
    return lambda run: fit(run, model(run, **options))


def _fitted(**arguments: Any) -> Callable[[Run], None]:
    return lambda run: fit(run, model(run), **arguments)


def _weights() -> Any:
    return np.linspace(0.1, 2.0, len(samples()[0]), dtype="float32")


def _sample_weights(run: Run) -> None:
    made = model(run, weighted_metrics=["accuracy"])
    run.fit(made, dataset(_weights()), validation_data=dataset(_weights()))


def _sample_weight_array(run: Run) -> None:
    made = model(run, weighted_metrics=["accuracy"])
    run.fit(made, *samples(), batch_size=BATCH, sample_weight=_weights())


def _class_weights(run: Run) -> None:
    run.fit(model(run, weighted_metrics=["accuracy"]), dataset(), class_weight={0: 0.5, 1: 1.0, 2: 3.0})


def _validation_split(run: Run) -> None:
    run.fit(model(run), *samples(64), batch_size=BATCH, validation_split=0.25)


def _validation_generator(run: Run) -> None:
    def batches() -> Iterator[Any]:
        for number in itertools.count():
            x, y = samples()
            start = number * BATCH % len(x)
            yield x[start : start + BATCH] + number, y[start : start + BATCH]

    run.fit(model(run), dataset(), validation_data=batches(), validation_steps=4)


WAYS = (
    Way("sample-weights", "sample weights in the dataset", _sample_weights),
    Way("sample-weight-array", "`sample_weight` for NumPy data", _sample_weight_array),
    Way("class-weights", "`class_weight`", _class_weights),
    Way(
        "steps-per-execution",
        "`steps_per_execution` that does not divide the steps of an epoch",
        _compiled(steps_per_execution=4),
        strikes=("batch 3",),
    ),
    Way("run-eagerly", "`run_eagerly=True`", _compiled(run_eagerly=True)),
    Way(
        "jit-compile",
        "`jit_compile=True`",
        _compiled(jit_compile=True),
        {
            ONE: Exact(),
            MIRRORED: KerasFails(
                "XLA on the CPU cannot have variables on several devices", "tfvariable_on_a_different_device"
            ),
            WORKERS: KerasFails(
                "XLA on the CPU has no collectives", "Collectives are not yet implemented for CPU devices"
            ),
        },
    ),
    Way(
        "validation-freq",
        "`validation_freq` as a number",
        _fitted(epochs=4, validation_freq=2),
        strikes=("test 0",),
    ),
    Way("validation-freq-list", "`validation_freq` as a list", _fitted(validation_freq=[1, 3])),
    Way("validation-split", "`validation_split`", _validation_split, strikes=("test_batch 1", "batch 3")),
    Way(
        "validation-steps",
        "`validation_steps` on data that continues from one validation to the next",
        lambda run: run.fit(model(run), dataset(), validation_data=dataset().repeat(), validation_steps=8),
        strikes=("test_batch 10", "batch 3"),
    ),
    Way(
        "validation-generator",
        "`validation_data` from a Python generator",
        _validation_generator,
        {
            ONE: Warned(
                "each validation continues where the one before left the generator, some batches ahead. Use a dataset",
                "NOT exact.*each validation continues",
            )
        },
    ),
    Way("initial-epoch", "`initial_epoch`", _fitted(initial_epoch=2, epochs=5)),
)
