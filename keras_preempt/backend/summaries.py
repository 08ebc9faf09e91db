"""Points in TensorBoard's training curves, which Keras writes with TensorFlow on every backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from keras_preempt.backend.keras.callbacks import train_summaries


def summary_writer(callback: keras.callbacks.TensorBoard) -> Any:
    """Returns the writer of a TensorBoard callback's training curves. Raises OSError if that fails."""
    import tensorflow as tf  # Here, as a program on another backend has no need of it without TensorBoard.

    try:
        return train_summaries(callback)
    except tf.errors.OpError as error:
        raise OSError(str(error)) from error


def write_points(writer: Any, values: Mapping[str, float], step: int) -> None:
    """Writes points of one step, and writes them out. Raises OSError if that fails."""
    import tensorflow as tf

    try:
        # The end of the block writes them out: the process may be about to end.
        with writer.as_default(), tf.summary.record_if(True):
            for name, value in values.items():
                tf.summary.scalar(name, value, step=step)
    except tf.errors.OpError as error:
        raise OSError(str(error)) from error
