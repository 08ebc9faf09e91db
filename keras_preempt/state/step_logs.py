"""The logs of a training step, as the step returned them: nested, and in tensors.

Keras compares their keys with those of the model's metrics to tell whether an epoch has the logs of its last step or
the results of its metrics, which on several replicas are other numbers. The logs that callbacks get are flattened and
no longer show that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_preempt.backend.keras.running_fit import RunningFit
from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.state import plain
from keras_preempt.state.component import Component, RestoreMoment, StoredState


class StepLogs(Component):
    """The logs of the last execution, and those of the epoch while its validation runs.

    Attributes:
        restored: Those of the last execution before the restored checkpoint; None if there is none.
    """

    def __init__(self, fit: RunningFit) -> None:
        self._fit = fit
        self.restored: Any = None

    def capture(self, phase: str, values: WorkerValues) -> dict[str, Any]:
        of_epoch = self._fit.epoch_logs() if phase == "validation" else None
        if change_later(of_epoch):
            of_epoch = None  # Then they are read from the metrics again, and change with them as in Keras.
        logs = {"logs": self._fit.step_logs() or self.restored, "epoch_logs": of_epoch}
        is_tensor = backend().variables.is_tensor
        # A number becomes one of NumPy, which goes into the JSON.
        return {
            name: plain.encode(
                _mapped(each, lambda leaf: np.asarray(leaf)[()] if is_tensor(leaf) else leaf),
                values.local,
                name,
            )
            for name, each in logs.items()
        }

    def restore(self, saved: StoredState, moment: RestoreMoment) -> None:
        if moment is not RestoreMoment.BEGIN:
            return
        to_tensor = backend().variables.to_tensor
        self.restored, of_epoch = (
            _mapped(
                plain.decode(logs, saved.arrays),
                lambda leaf: to_tensor(leaf) if isinstance(leaf, (np.ndarray, np.generic)) else leaf,
            )
            for logs in (saved.state["logs"], saved.state.get("epoch_logs"))  # Absent before release 0.2.
        )
        phase = saved.position.phase
        if phase == "validation" and of_epoch:
            self._fit.logs_of_an_epoch_without_steps(of_epoch, of_step=False)
        elif phase in ("train", "validation") and self.restored:
            self._fit.logs_of_an_epoch_without_steps(self.restored, of_step=True)


def change_later(logs: Any) -> bool:
    """Whether logs hold a variable, or a view of one, as a metric may return: a validation changes it later."""
    if isinstance(logs, Mapping):
        return any(change_later(value) for value in logs.values())
    if isinstance(logs, (list, tuple)):
        return any(change_later(value) for value in logs)
    return backend().variables.may_change(logs)


def flat(logs: Any) -> dict[str, Any]:
    """Returns logs as callbacks get them: inner dictionaries are flattened, and numbers are floats."""
    found: dict[str, Any] = {}
    for name, value in logs.items() if isinstance(logs, Mapping) else ():
        if isinstance(value, Mapping):
            found.update(flat(value))
        else:
            found[name] = float(value) if np.ndim(value) == 0 and not isinstance(value, str) else value
    return found


def _mapped(logs: Any, of_leaf: Callable[[Any], Any]) -> Any:
    if isinstance(logs, Mapping):
        return {name: _mapped(value, of_leaf) for name, value in logs.items()}
    if type(logs) in (list, tuple):
        return type(logs)([_mapped(value, of_leaf) for value in logs])
    return of_leaf(logs)
