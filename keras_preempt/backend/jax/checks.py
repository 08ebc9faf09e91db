"""What stops a fit on JAX in the middle, or makes it another one than was asked for, told before its first step."""

from __future__ import annotations

import logging
import re
from typing import Any

import keras

from keras_preempt.backend.jax.rows import rows_of
from keras_preempt.backend.keras.input_feed import InputFeed

logger = logging.getLogger("keras_preempt")


def check(model: Any, feed: InputFeed) -> None:
    """Checks a fit that begins.

    Raises:
        ValueError: Its last batch cannot be divided among the devices, which Keras would find out when it comes.
    """
    distribution = keras.distribution.distribution()
    if distribution is None:
        return
    _check_last_batch(feed, rows_of(distribution).here)
    for pattern in _unmatched(model, distribution):
        logger.warning(
            "The key %r of the LayoutMap matches no variable of the model, whose weights it does not divide. Keras "
            "compares it with whole paths: write '.*%s'.",
            pattern,
            pattern.removeprefix(".*"),
        )


def _check_last_batch(feed: InputFeed, here: int) -> None:
    last = feed.last_batch
    if last and last % here:
        raise ValueError(
            f"Expected a last batch that {here} devices can divide. Received: one of {last}, at which fit fails. "
            f"Leave samples out, so that each batch is a multiple of {here}; of a tf.data.Dataset, batch(..., "
            "drop_remainder=True)."
        )


def _unmatched(model: Any, distribution: Any) -> list[str]:
    if not isinstance(distribution, keras.distribution.ModelParallel):
        return []
    # Of a mesh with one device in that direction nothing is divided anyway.
    paths = [variable.path for variable in (*model.variables, *_optimizer_variables(model))]
    return [
        str(pattern)
        for pattern in distribution._layout_map
        if not any(path == pattern or re.fullmatch(pattern, path) for path in paths)
    ]


def _optimizer_variables(model: Any) -> list[Any]:
    return [] if model.optimizer is None else list(model.optimizer.variables)
