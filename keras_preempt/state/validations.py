"""The position of the validation data between the validations of a fit, and how a restart gets there again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.state import inputs
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
