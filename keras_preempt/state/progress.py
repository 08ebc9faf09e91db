"""How far training has come, and what it trains on."""

from __future__ import annotations

from typing import Any

import keras

from keras_preempt.backend.keras.running_fit import RunningFit
from keras_preempt.checkpoint.setup import SETUP, Setup
from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.state.component import Component, RestoreMoment, StoredState


class Progress(Component):
    """The set-up, and whether a callback has stopped training; a restart begins with the epoch of the checkpoint."""

    before_validation = False

    def __init__(self, model: keras.Model, fit: RunningFit, setup: Setup) -> None:
        self._model, self._fit, self._setup = model, fit, setup

    def capture(self, phase: str, values: WorkerValues) -> dict[str, Any]:
        stopped = phase == "end" and self._model.stop_training
        return {SETUP: self._setup.to_json(), "stopped": bool(stopped)}

    def restore(self, saved: StoredState, moment: RestoreMoment) -> None:
        if moment is RestoreMoment.BEGIN:
            epoch = saved.position.epoch
            self._fit.start_at(max(epoch, self._fit.epochs) if saved.state["stopped"] else epoch)
