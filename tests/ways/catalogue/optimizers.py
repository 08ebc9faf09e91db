"""Optimizers that keep more than slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.ways.catalogue.basics import fit, model
from tests.ways.late import keras
from tests.ways.way import Run, Way


def _with(make: Callable[[], Any], policy: str = "") -> Callable[[Run], None]:
    """Returns a job with that optimizer, and with a policy for the types of its numbers."""

    def job(run: Run) -> None:
        if policy:
            keras.mixed_precision.set_global_policy(policy)
        with run.scope():
            optimizer = make()
        fit(run, model(run, optimizer=optimizer))

    return job


def _scaled() -> Any:
    """Grows every other step, and falls when float16 overflows: both happen within the run."""
    inner = keras.optimizers.Adam(0.01)
    return keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**17, dynamic_growth_steps=2)


def _accumulated_and_overwritten() -> Any:
    inner = keras.optimizers.AdamW(
        weight_decay=0.01,
        clipnorm=0.5,
        gradient_accumulation_steps=4,
        use_ema=True,
        ema_momentum=0.9,
        ema_overwrite_frequency=2,
    )
    return keras.optimizers.LossScaleOptimizer(inner, dynamic_growth_steps=3)


def _schedule() -> Any:
    return keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 12), momentum=0.9, nesterov=True)


WAYS = (
    Way(
        "loss-scaling",
        "mixed precision: `mixed_float16` with dynamic loss scaling",
        _with(_scaled, "mixed_float16"),
    ),
    Way("bfloat16", "mixed precision: `mixed_bfloat16`", _with(lambda: "adam", "mixed_bfloat16")),
    Way(
        "gradient-accumulation",
        "`gradient_accumulation_steps`, which do not divide the steps of an epoch",
        _with(lambda: keras.optimizers.Adam(gradient_accumulation_steps=4)),
    ),
    Way(
        "moving-average",
        "`use_ema`, which overwrites the weights when training ends",
        _with(lambda: keras.optimizers.Adam(use_ema=True, ema_momentum=0.9)),
        strikes=("batch 9", "test 1"),
    ),
    Way(
        "moving-average-overwrite",
        "`use_ema` with `ema_overwrite_frequency`",
        _with(lambda: keras.optimizers.Adam(use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4)),
    ),
    Way(
        "accumulation-overwrite",
        "both, with weight decay, in a loss scale, and preempted between two updates each time",
        _with(_accumulated_and_overwritten),
        strikes=("batch 2", "batch 5", "test 0"),
    ),
    Way("learning-rate-schedule", "a learning rate schedule, momentum, `nesterov`", _with(_schedule)),
    Way(
        "clipping",
        "`global_clipnorm`, weight decay, AMSGrad",
        _with(lambda: keras.optimizers.AdamW(amsgrad=True, weight_decay=0.01, global_clipnorm=0.5)),
    ),
    Way("muon", "Muon", _with(lambda: keras.optimizers.Muon())),
)
