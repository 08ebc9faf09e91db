"""The position of the validation data between the validations of a fit, and how a restart gets there again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import keras

from keras_preempt.backend.keras import batches_asked
from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.backend.keras.running_fit import builds_before_evaluating, evaluation_iterator
from keras_preempt.backend.seam import backend
from keras_preempt.state import input_exactness, inputs
from keras_preempt.state.shuffles import Counts, Shuffles


@dataclass
class Validated:
    """What was drawn from the validation data so far.

    Attributes:
        made_at: How far the shuffles had come when each of its iterators was made.
        looked: Whether Keras has drawn a batch to build the model since the last validation, as under a strategy.
        goes_on: Whether it takes that batch from the last of these iterators, and not from a new one.
    """

    made_at: Sequence[Counts | None] = ()
    looked: bool = False
    goes_on: bool = False

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON data."""
        return {**asdict(self), "made_at": list(self.made_at)}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Validated:
        """Makes it from what `to_json` returned; from an empty mapping where a save had none."""
        made_at = [
            None if counts is None else [int(each) for each in counts] for counts in state.get("made_at", ())
        ]
        return cls(made_at, bool(state.get("looked", False)), bool(state.get("goes_on", False)))

    def draw_again(
        self, feed: InputFeed, draws: Sequence[int], shuffles: Shuffles, before: Counts | None, *, looks: bool
    ) -> None:
        """Brings the validation data of a resumed fit to where it would be without the interruption.

        Args:
            feed: The input of the validations, from which only the batch that Keras looks at was drawn.
            draws: How many batches were drawn from each iterator when a validation began.
            shuffles: Those of the fit.
            before: How far they had come before Keras looked at a batch; None if that cannot be told.
            looks: Whether Keras looks at a batch before each validation.
        """
        if not draws:
            return
        if before is None or not self.made_at or self.made_at[-1] is None:
            inputs.draw_again(feed, draws)
            return
        # By now Keras has looked at a batch, for which it has made an iterator. In the fit as it was, it looked at one
        # of an iterator that was there, or of a new one as well.
        looked_anew = looks and not self.goes_on
        after = shuffles.counts() if looked_anew else before
        made_at = [*self.made_at, before] if looked_anew and not self.looked else self.made_at
        inputs.draw_again(feed, draws, shuffles, made_at)
        shuffles.go_to(after)


class Validations:
    """The validations of one fit: what they have drawn of their data, and what a save has to hold of that.

    Args:
        model: The model that is fitted.
        shuffles: Those of its training and validation data.
    """

    def __init__(self, model: keras.Model, shuffles: Shuffles) -> None:
        self._model = model
        self._shuffles = shuffles
        self._feed: InputFeed | None = None
        self._restored_draws: list[int] = []
        self._validated = Validated()
        self._counts_before: Counts | None = None  # How far the shuffles were before the last validation.

    @property
    def dataset(self) -> Any:
        """What Keras iterates over in the validations; None if there was none yet."""
        return None if self._feed is None else self._feed.dataset

    @property
    def iterators(self) -> int:
        """How many iterators over the data were made before the restored checkpoint."""
        return len(self._restored_draws)

    def before_evaluate(self) -> None:
        """Before Keras makes an iterator for a validation, to look at a batch or to go through all."""
        self._counts_before = self._shuffles.counts()
        if self._feed is not None:
            self._validated.goes_on = self._feed.goes_on

    def capture(self, *, inside: bool) -> dict[str, Any]:
        """Returns what a save holds, as JSON data.

        Args:
            inside: Whether a validation is about to begin, which a save during it starts over.
        """
        if inside:
            self._begin()
        if self._feed is None:
            draws = self._restored_draws
        elif inside or not builds_before_evaluating(self._model):
            draws = self._feed.draws
        else:
            # Under a strategy, Keras looks at one more batch before each validation. The restarted process does so by
            # itself before its first one; all the others it has to draw again.
            draws = self._feed.draws_after_next_look()
        if self._feed is not None:
            goes_on = self._validated.goes_on if inside else self._feed.goes_on
            self._validated = Validated(list(self._feed.noted), inside, goes_on)
        return {
            "evaluation_iterators": len(draws),
            "evaluation_draws": draws,
            "validated": self._validated.to_json(),
            "shuffles": self._counts_before if inside else self._shuffles.counts(),
        }

    def ended(self) -> str:
        """Looks at the data of a validation that has ended; see `input_exactness.shown_by_validation`."""
        return "" if self._feed is None else input_exactness.shown_by_validation(self._feed)

    def _begin(self) -> None:
        source = evaluation_iterator(self._model)
        looks = builds_before_evaluating(self._model)
        if source is not None and (self._feed is None or not self._feed.belongs_to(source)):
            self._feed = backend().feed(source)
            self._feed.note = self._shuffles.counts
            self._validated.draw_again(
                self._feed, self._restored_draws, self._shuffles, self._counts_before, looks=looks
            )
        elif self._feed is not None and looks:
            self._feed.looked_at()
        if self._feed is not None:
            batches_asked.of(self._feed.epoch_iterator).begin_epoch()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over what `capture` returned, also from an earlier release."""
        made = int(state["evaluation_iterators"])
        self._restored_draws = [int(batches) for batches in state.get("evaluation_draws", [0] * made)]
        self._validated = Validated.from_json(state.get("validated", {}))
