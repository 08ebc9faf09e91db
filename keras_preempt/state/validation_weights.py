"""What a validation changes of the variables: kept from before it, so that a save during it starts it over."""

from __future__ import annotations

import logging

import keras

from keras_preempt.checkpoint.boxes import Box
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.state.callback_code import HookCode
from keras_preempt.state.callbacks import CHANGES_WEIGHTS, CallbackStates
from keras_preempt.state.model import ModelState

logger = logging.getLogger("keras_preempt")

Overrides = tuple[dict[str, Array], dict[Box, Array]]
"""Values of variables, and of the pieces that this worker holds of sharded ones."""


class ValidationWeights:
    """Keeps metrics, seeds and counters; the weights as well where something could change them for the validation.

    Args:
        model: The model that is fitted.
        variables: Its variables.
        callbacks: The other callbacks.
    """

    def __init__(self, model: keras.Model, variables: ModelState, callbacks: CallbackStates) -> None:
        self._variables = variables
        self._callbacks = callbacks
        # A model's own evaluate may do so before the validation begins, and does so again after a restart.
        self._evaluate_changes = HookCode(model, ("evaluate",)).may_change_weights
        self._before_evaluate: Overrides | None = None
        self._sample: dict[str, Array] | None = None

    def before_evaluate(self) -> None:
        """Before `fit` calls the model's evaluate."""
        self._before_evaluate = self._capture(weights=True) if self._evaluate_changes else None

    def before(self) -> Overrides:
        """Returns what is to be kept, before the other callbacks begin the validation."""
        changes = self._callbacks.change_weights
        kept, self._before_evaluate = self._before_evaluate or self._capture(weights=changes), None
        self._sample = None if changes else self._variables.sample()
        return kept

    def began(self) -> None:
        """The other callbacks have begun the validation: warns if one has changed weights that were not kept."""
        if self._sample is not None and not self._variables.is_like(self._sample):
            logger.warning(
                "A callback changes the weights for the validation, which its code does not show, or its %s = False "
                "denies. A preemption within this one would save the changed weights: NOT exact. The next ones are "
                "safe; for this one as well, set that attribute to True.",
                CHANGES_WEIGHTS,
            )
            self._callbacks.change_weights = True

    def _capture(self, *, weights: bool) -> Overrides:
        variables = self._variables
        return (
            variables.capture_changed_by_validation(weights=weights),
            variables.capture_boxes_changed_by_validation(weights=weights),
        )
