"""The validations of a fit: the position of their data, and the variables that they change.

Between validations, a save holds how much was drawn from the validation data, so that a restart gets there again. A
save during a validation holds the variables from before it, so that the restart starts it over.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import keras

from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.backend.keras.running_fit import builds_before_evaluating, evaluation_iterator
from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.state import inputs
from keras_preempt.state.callback_code import HookCode
from keras_preempt.state.callbacks import CHANGES_WEIGHTS, CallbackStates
from keras_preempt.state.component import Component, RestoreMoment, StoredState
from keras_preempt.state.model import ModelState
from keras_preempt.state.shuffles import Counts, Shuffles

logger = logging.getLogger("keras_preempt")


@dataclass
class _Drawn:
    """What was drawn from the validation data so far; the names of its fields are those in a checkpoint."""

    # How far the shuffles had come when each of its iterators was made.
    made_at: Sequence[Counts | None] = ()
    # Whether Keras has drawn a batch to build the model since the last validation, as under a strategy.
    looked: bool = False
    # Whether it takes that batch from the last of these iterators, and not from a new one.
    goes_on: bool = False


class Validations(Component):
    """The validations of one fit: what they have drawn of their data, and what they change of the variables.

    They change metrics, seeds and counters, and weights where something could change these: the other callbacks, or a
    model's own evaluate, before the validation begins and again after a restart.

    Attributes:
        feed: Their data; None if there was none yet.
        restored_draws: How many batches were drawn from each iterator that was made before the restored checkpoint.
    """

    def __init__(
        self, model: keras.Model, shuffles: Shuffles, variables: ModelState, callbacks: CallbackStates
    ) -> None:
        self._model = model
        self._shuffles = shuffles
        self._variables = variables
        self._callbacks = callbacks
        self.feed: InputFeed | None = None
        self.restored_draws: list[int] = []
        self._drawn = _Drawn()
        self._counts_before: Counts | None = None  # How far the shuffles were before the last validation.
        self._evaluate_changes = HookCode(model, ("evaluate",)).may_change_weights
        self._before_evaluate: WorkerValues | None = None
        self._sample: WorkerValues | None = None

    def before_evaluate(self) -> None:
        """Before Keras makes an iterator for a validation, to look at a batch or to go through all."""
        self._counts_before = self._shuffles.counts()
        if self.feed is not None:
            self._drawn.goes_on = self.feed.goes_on
        capture = self._variables.capture_changed_by_validation
        self._before_evaluate = capture(weights=True) if self._evaluate_changes else None

    def before(self) -> WorkerValues:
        """Returns the variables to be kept, before the other callbacks begin the validation."""
        changes = self._callbacks.change_weights
        kept = self._before_evaluate or self._variables.capture_changed_by_validation(weights=changes)
        self._before_evaluate = None
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

    def capture(self, phase: str, values: WorkerValues) -> dict[str, Any]:
        inside = phase == "validation"
        if inside:  # One begins.
            source = evaluation_iterator(self._model)
            looks = builds_before_evaluating(self._model)
            if source is not None and (self.feed is None or self.feed.epoch_iterator is not source):
                self.feed = backend().feed(source)
                self.feed.note = self._shuffles.counts
                self._draw_again(self.feed, looks=looks)
            elif self.feed is not None and looks:
                self.feed.looked_at()
            if self.feed is not None:
                self.feed.asked.begin_epoch()
        if self.feed is None:
            draws = self.restored_draws
        elif inside or not builds_before_evaluating(self._model):
            draws = self.feed.draws
        else:
            # Under a strategy, Keras looks at one more batch before each validation. The restarted process does so by
            # itself before its first one; all the others it has to draw again.
            draws = self.feed.draws_after_next_look()
        if self.feed is not None:
            goes_on = self._drawn.goes_on if inside else self.feed.goes_on
            self._drawn = _Drawn(list(self.feed.noted), inside, goes_on)
        return {
            "evaluation_iterators": len(draws),
            "evaluation_draws": draws,
            "validated": {**asdict(self._drawn), "made_at": list(self._drawn.made_at)},
            "shuffles": self._counts_before if inside else self._shuffles.counts(),
        }

    def restore(self, saved: StoredState, moment: RestoreMoment) -> None:
        """Also from an earlier release, which noted less."""
        if moment is not RestoreMoment.BEGIN:
            return
        state = saved.state
        made = int(state["evaluation_iterators"])
        self.restored_draws = [int(batches) for batches in state.get("evaluation_draws", [0] * made)]
        drawn = state.get("validated", {})
        made_at = [
            None if counts is None else [int(each) for each in counts] for counts in drawn.get("made_at", ())
        ]
        self._drawn = _Drawn(made_at, bool(drawn.get("looked", False)), bool(drawn.get("goes_on", False)))

    def _draw_again(self, feed: InputFeed, *, looks: bool) -> None:
        """Brings the validation data of a resumed fit to where it would be without the interruption.

        Only the batch that Keras looks at was drawn from the feed; it does so before each validation if `looks`.
        """
        before, drawn = self._counts_before, self._drawn
        if not self.restored_draws:
            return
        if before is None or not drawn.made_at or drawn.made_at[-1] is None:
            inputs.draw_again(feed, self.restored_draws)
            return
        # By now Keras has looked at a batch, for which it has made an iterator. In the fit as it was, it looked at one
        # of an iterator that was there, or of a new one as well.
        looked_anew = looks and not drawn.goes_on
        after = self._shuffles.counts() if looked_anew else before
        made_at = [*drawn.made_at, before] if looked_anew and not drawn.looked else drawn.made_at
        inputs.draw_again(feed, self.restored_draws, self._shuffles, made_at)
        self._shuffles.go_to(after)
