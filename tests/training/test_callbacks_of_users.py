"""Callbacks of the user's that change weights or gather values: what a preemption at any hook leaves of that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tests import preempted
from tests.fits import Stateless


class Halves(Stateless):
    """Validates with half of the weights."""

    def on_test_begin(self, logs: Any = None) -> None:
        self.kept = halve(self.model)

    def on_test_end(self, logs: Any = None) -> None:
        self.model.set_weights(self.kept)


def halve(model: keras.Model) -> list[np.ndarray[Any, Any]]:
    """Halves the weights; returns what they were."""
    before = model.get_weights()
    model.set_weights([weight * np.float32(0.5) for weight in before])
    return before


@pytest.mark.parametrize("strike", [("on_test_batch_begin", 1), ("on_test_batch_begin", 5)])
def test_weights_swapped_for_a_validation_are_kept_before_the_first_one(
    tmp_path: Path, strike: preempted.Strike
) -> None:
    preempted.assert_exact(tmp_path, lambda: [Halves()], strike)


class Evaluates(keras.Sequential):
    """Evaluates with half of the weights."""

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        before = halve(self)
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self.set_weights(before)


def test_weights_that_the_models_own_evaluate_swaps_are_kept(tmp_path: Path) -> None:
    preempted.assert_exact(tmp_path, list, ("on_test_batch_begin", 1), kind=Evaluates)


class HalvesAsEpochsBegin(Stateless):
    """Halves the weights whenever an epoch begins."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        halve(self.model)


class HalvesAsTrainingBegins(Stateless):
    """Halves the weights when training begins, and sets a learning rate that others change later."""

    def on_train_begin(self, logs: Any = None) -> None:
        halve(self.model)
        self.model.optimizer.learning_rate = 0.1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.01 / (epoch + 1)


class HalvesAroundSteps(Stateless):
    """Changes the weights before and after each step."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        halve(self.model)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.set_weights([weight * np.float32(1.5) for weight in self.model.get_weights()])


IN_EPOCH, IN_VALIDATION, BETWEEN = (
    ("on_train_batch_begin", 8),
    ("on_test_batch_begin", 5),
    ("on_epoch_end", 1),
)


@pytest.mark.parametrize(
    ("kind", "strike"),
    [
        (HalvesAsEpochsBegin, IN_EPOCH),
        (HalvesAsEpochsBegin, IN_VALIDATION),
        (HalvesAsTrainingBegins, IN_EPOCH),
        (HalvesAsTrainingBegins, BETWEEN),
        (HalvesAroundSteps, IN_EPOCH),
        (HalvesAroundSteps, BETWEEN),
    ],
)
def test_weights_that_a_callback_changes_at_other_hooks_are_those_of_an_undisturbed_run(
    tmp_path: Path, kind: type[keras.callbacks.Callback], strike: preempted.Strike
) -> None:
    preempted.assert_exact(tmp_path, lambda: [kind()], strike)
