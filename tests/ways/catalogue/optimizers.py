"""Optimizers that keep more than slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tests.ways.catalogue.basics import dataset, model
from tests.ways.way import MIRRORED, ONE, WORKERS, Exact, Verdict, Way

if TYPE_CHECKING:
    from tests.ways.run import Run

EVERYWHERE: Mapping[str, Verdict] = {ONE: Exact(), MIRRORED: Exact(), WORKERS: Exact()}


def _with(make: Callable[[Any], Any]) -> Callable[[Run], None]:
    def job(run: Run) -> None:
        import keras

        with run.scope():
            optimizer = make(keras)
        run.fit(model(run, optimizer=optimizer), dataset(), validation_data=dataset())

    return job


def _loss_scaling(run: Run) -> None:
    """Grows every other step, and falls when float16 overflows: both happen within the run."""
    import keras

    keras.mixed_precision.set_global_policy("mixed_float16")
    with run.scope():
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.Adam(0.01), initial_scale=2.0**17, dynamic_growth_steps=2
        )
    run.fit(model(run, optimizer=optimizer), dataset(), validation_data=dataset())


def _accumulated_and_overwritten(run: Run) -> None:
    import keras

    with run.scope():
        inner = keras.optimizers.AdamW(
            weight_decay=0.01,
            clipnorm=0.5,
            gradient_accumulation_steps=4,
            use_ema=True,
            ema_momentum=0.9,
            ema_overwrite_frequency=2,
        )
        optimizer = keras.optimizers.LossScaleOptimizer(inner, dynamic_growth_steps=3)
    run.fit(model(run, optimizer=optimizer), dataset(), validation_data=dataset())


def _bfloat16(run: Run) -> None:
    import keras

    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    run.fit(model(run), dataset(), validation_data=dataset())


def _schedule(keras: Any) -> Any:
    return keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 12), momentum=0.9, nesterov=True)


WAYS = (
    Way(
        "loss-scaling",
        "mixed precision: `mixed_float16` with dynamic loss scaling",
        _loss_scaling,
        EVERYWHERE,
    ),
    Way("bfloat16", "mixed precision: `mixed_bfloat16`", _bfloat16, EVERYWHERE),
    Way(
        "gradient-accumulation",
        "`gradient_accumulation_steps`, which do not divide the steps of an epoch",
        _with(lambda keras: keras.optimizers.Adam(gradient_accumulation_steps=4)),
        EVERYWHERE,
    ),
    Way(
        "moving-average",
        "`use_ema`, which overwrites the weights when training ends",
        _with(lambda keras: keras.optimizers.Adam(use_ema=True, ema_momentum=0.9)),
        EVERYWHERE,
        strikes=("batch 9", "test 1"),
    ),
    Way(
        "moving-average-overwrite",
        "`use_ema` with `ema_overwrite_frequency`",
        _with(lambda keras: keras.optimizers.Adam(use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4)),
        EVERYWHERE,
    ),
    Way(
        "accumulation-overwrite",
        "both, with weight decay, in a loss scale, and preempted between two updates each time",
        _accumulated_and_overwritten,
        EVERYWHERE,
        strikes=("batch 2", "batch 5", "test 0"),
    ),
    Way(
        "learning-rate-schedule",
        "a learning rate schedule, momentum, `nesterov`",
        _with(_schedule),
        EVERYWHERE,
    ),
    Way(
        "clipping",
        "`global_clipnorm`, weight decay, AMSGrad",
        _with(lambda keras: keras.optimizers.AdamW(amsgrad=True, weight_decay=0.01, global_clipnorm=0.5)),
        EVERYWHERE,
    ),
    Way("muon", "Muon", _with(lambda keras: keras.optimizers.Muon()), EVERYWHERE),
)
