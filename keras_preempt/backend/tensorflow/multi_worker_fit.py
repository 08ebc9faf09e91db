"""Makes Keras 3's `fit`, `evaluate` and `predict` work with several workers and several replicas.

Keras 3.15.1 fails under `tf.distribute.MultiWorkerMirroredStrategy` before the first step. Gradient accumulation and
`ema_overwrite_frequency` also fail under `tf.distribute.MirroredStrategy`, and so does more than one step per execution
on more than one replica. A step whose scaled gradients overflow on only one worker hangs. `enable_multi_worker_fit`
repairs what is broken in the installed Keras until the repair is undone, and leaves alone what works.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

import keras

from keras_preempt.backend.keras.names import KerasInternalsError
from keras_preempt.backend.keras.replacing import Replacements
from keras_preempt.backend.tensorflow.repairs import REPAIRS, Repair

_GUARDED_METHODS = ("fit", "evaluate", "train_on_batch", "test_on_batch")
"""The methods that a defect breaks; `predict` averages nothing and loops in Python."""


def enable_multi_worker_fit() -> MultiWorkerFit:
    """Repairs what keeps the installed Keras from training under several workers, until the handle is undone.

    Repaired are `fit` and `evaluate` under `tf.distribute.MultiWorkerMirroredStrategy`, and under it and
    `tf.distribute.MirroredStrategy` `gradient_accumulation_steps`, `use_ema` with `ema_overwrite_frequency`,
    `steps_per_execution` larger than 1, and the loss scaling of `mixed_float16`: docs/versions.md has a table.

    To be called before `fit`; before or after the strategy and the model are made. Models on one device, and
    models on a Keras without these defects, run Keras' own code. Whether a defect is there is read from the
    installed code without running any operation, since `MultiWorkerMirroredStrategy` must be made before the
    first one.

    Example:
        ```python
        keras_preempt.enable_multi_worker_fit()
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        with strategy.scope():
            model = ...
            model.compile("adam", "mse", steps_per_execution=8)
        model.fit(dataset, epochs=3)
        ```

    Returns:
        A handle, also a context manager. Several may be live at once: Keras is as it was before once all are
        undone. If a defect cannot be found or repaired because this Keras is laid out differently, that is an
        error only for a model that would meet it: its `fit`, `evaluate`, `train_on_batch` or `test_on_batch`
        raises a RuntimeError that names the Keras that is needed.
    """
    _installation.acquire()
    return MultiWorkerFit(tuple(_repaired))


class MultiWorkerFit:
    """The repairs while they are in place, as made by `enable_multi_worker_fit`.

    Attributes:
        repaired: The defects that the installed Keras has and that are repaired, in words; empty if it has none.
    """

    def __init__(self, repaired: tuple[str, ...]) -> None:
        self.repaired = repaired
        self._live = True

    def undo(self) -> None:
        """Undoes the repairs; Keras' own functions return with the last handle. More calls do nothing."""
        if self._live:
            self._live = False
            _installation.release()

    def __enter__(self) -> MultiWorkerFit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


_repaired: list[str] = []
"""The defects that are repaired at the moment, in words."""


def _repair(replacements: Replacements) -> None:
    _repaired.clear()
    beyond_repair: list[tuple[Repair, KerasInternalsError]] = []
    for repair in REPAIRS:
        try:
            if not repair.needed():
                continue
            owner, name, original = repair.target.owner(), repair.target.attribute, repair.target.find()
        except KerasInternalsError as error:
            beyond_repair.append((repair, error))
            continue
        replacements.replace(owner, name, repair.repaired(original))
        _repaired.append(repair.defect)
    if beyond_repair:
        for name in _GUARDED_METHODS:
            replacements.replace(keras.Model, name, _guarded(getattr(keras.Model, name), beyond_repair))


def _guarded(
    method: Callable[..., Any], beyond_repair: list[tuple[Repair, KerasInternalsError]]
) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        for repair, error in beyond_repair:
            if repair.concerns(self):
                raise error
        return method(self, *args, **kwargs)

    return guarded


_installation = Replacements(_repair)
