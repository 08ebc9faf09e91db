"""Keras' own callbacks: their state, and what they offer no public way to do.

Verified with Keras 3.8.0 to 3.15.1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import keras

from keras_preempt.backend.bytecode import stored_attributes
from keras_preempt.backend.user_code import is_a, is_of_keras

CALLBACK_STATE: dict[type, tuple[str, ...]] = {
    keras.callbacks.EarlyStopping: ("wait", "stopped_epoch", "best", "best_weights", "best_epoch"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
    keras.callbacks.History: ("history", "epoch"),
    keras.callbacks.ModelCheckpoint: ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
    keras.callbacks.CSVLogger: ("keys",),
    keras.callbacks.TensorBoard: ("_global_train_batch", "_global_test_batch"),
    keras.callbacks.SwapEMAWeights: ("_ema_weights_in_model",),
}
"""The attributes of Keras' own callbacks that are their state."""

COPIES_OF_WEIGHTS: frozenset[str] = frozenset({"best_weights"})
"""Those of them that hold a list of weights, as `model.get_weights` returns it."""

STATELESS_CALLBACKS: tuple[type, ...] = (
    keras.callbacks.ProgbarLogger,
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.TerminateOnNaN,
    keras.callbacks.RemoteMonitor,
)
"""Callbacks of Keras that keep nothing on which the next epoch depends."""


def variables_of(value: Any) -> list[Any]:
    """Returns the variables of a layer, a model, a metric or an optimizer; none of another object."""
    for kind in (keras.Layer, keras.Metric, keras.optimizers.Optimizer):
        if is_a(value, kind):
            return list(kind.variables.fget(value))  # Keras' own property: no code of the user's.
    return []


@functools.cache
def attributes_of_keras(kind: type) -> frozenset[str]:
    """Returns the attributes that Keras' own classes set, among the base classes of a class of callbacks."""
    found = {name for name in vars(keras.callbacks.Callback) if name.startswith("on_")}
    for each in kind.__mro__:
        for function in vars(each).values() if is_of_keras(each) else ():
            if isinstance(function, FunctionType):
                found |= stored_attributes(function.__code__)
    return frozenset(found)


def flush_summaries(callback: keras.callbacks.TensorBoard) -> None:
    """Writes the points that TensorBoard has buffered; Keras does so only when training ends."""
    for writer in callback._writers.values():
        writer.flush()


def saves_in_background(callback: Any) -> Callable[[], object] | None:
    """Returns a function that waits for background saves of a callback of Keras; None for any other callback.

    Keras itself waits for them when training ends.
    """
    orbax = getattr(keras.callbacks, "OrbaxCheckpoint", None)  # Older releases of Keras have none.
    if orbax is None or not isinstance(callback, orbax):
        return None
    # Keras' own method, also for a subclass of the user's.
    return functools.partial(orbax.wait_until_finished, callback)


def train_summaries(callback: keras.callbacks.TensorBoard) -> Any:
    """Returns the `tf.summary.SummaryWriter` of TensorBoard's training curves; makes it if there is none yet."""
    return callback._train_writer


def take_up_step(callback: keras.callbacks.TensorBoard) -> None:
    """Has TensorBoard decide by its restored batch number whether the next points are due.

    With an `update_freq` in batches, it decided that by the number it began with, also for points of the epoch.
    """
    if callback.update_freq != "epoch":
        callback._pop_writer()
        callback._push_writer(callback._train_writer, callback._global_train_batch)


class ProgressBar:
    """The progress bar among the callbacks of a fit, which ends its line on standard output when the epoch ends."""

    def __init__(self, callbacks: Iterable[Any]) -> None:
        self._logger = next((c for c in callbacks if isinstance(c, keras.callbacks.ProgbarLogger)), None)
        self._ended: Any = None

    def drawn_at(self) -> float:
        """Returns when the bar was last drawn, in seconds since 1970; 0 if standard output is not in its line."""
        bar = getattr(self._logger, "progbar", None)
        if bar is None or bar is self._ended or getattr(bar, "verbose", 0) != 1:
            return 0.0
        return float(getattr(bar, "_last_update", 0.0))

    def ended(self) -> None:
        """Called when an epoch, and so the line of its bar, has ended."""
        self._ended = getattr(self._logger, "progbar", None)
