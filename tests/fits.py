"""The fits that a test's process has counted until now, and a callback for what a test does in one."""

from __future__ import annotations

from typing import Any

import keras

from keras_preempt.training.run import several_fits


def forget() -> None:
    """Makes the next fit the first one of its directory, as in a new process."""
    several_fits._scripts.clear()
    several_fits.late_signals.clear()
    several_fits._said.clear()
    several_fits.ended_fits.before_training()


def untuned(dataset: Any) -> Any:
    """A `tf.data.Dataset` that TensorFlow does not tune while it runs.

    Where processors are busy, TensorFlow may hold up whoever drops an iterator of one that is tuned, for a minute.
    """
    import tensorflow as tf  # Here, since programs without it need the rest.

    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


class Stateless(keras.callbacks.Callback):
    """A callback that says that it has no state."""

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


class Doing(Stateless, keras.callbacks.LambdaCallback):
    """Does what it is given, such as `on_epoch_end=...`; it has no state that could be lost."""


def fail(*_: Any, **__: Any) -> None:
    """For `Doing`."""
    raise KeyError("by the test")
