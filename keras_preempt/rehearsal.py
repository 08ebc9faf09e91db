"""What a fit does for `keras-preempt drill` and never otherwise: it records its steps, and it is struck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from keras_preempt import space
from keras_preempt.alignment import Position
from keras_preempt.drill import Drill
from keras_preempt.keras_internals import InputFeed
from keras_preempt.saves import Saves
from keras_preempt.session import Session
from keras_preempt.state import input_promise
from keras_preempt.state.model import ModelState
from keras_preempt.step_record import StepRecord
from keras_preempt.tensorflow_internals import hidden_sources
from keras_preempt.training.promise import promise


class Rehearsal:
    """The drill's part in one fit of one worker.

    Args:
        drill: When to strike, or None.
        record: Where to record, or None.
        session: The fit.
    """

    def __init__(self, drill: Drill | None, record: StepRecord | None, session: Session) -> None:
        self._drill = drill
        self._looks = drill is not None  # Whether the drill has to see boundaries.
        self._record = record
        self._session = session

    @classmethod
    def from_environment(
        cls,
        member: int,
        model_state: ModelState,
        feed: InputFeed,
        session: Session,
        saves: Saves,
        unsaved: Sequence[str],
    ) -> Rehearsal:
        """Gets ready for what the environment asks for; it costs nothing if that is nothing.

        Args:
            member: The number of this worker.
            model_state: The variables.
            feed: The training data.
            session: The fit.
            saves: Its saves.
            unsaved: Callbacks whose state is not kept over a restart.

        Raises:
            ValueError: The variable of the drill is set to something else.
            OSError: The record cannot be opened.
        """

        def capture() -> Mapping[str, np.ndarray]:
            return {**model_state.capture_mirrored(), **model_state.capture_local()}

        size = space.size_of(model_state.signature())
        record = StepRecord.from_environment(member, capture, size, feed.steps_per_execution)
        drill = Drill.from_environment(member)
        if drill is not None:
            drill.begin(lambda: saves.step_in_flight)
        if record is not None:
            data = promise(input_promise.promise(feed, session.validation_data), session.shuffles)
            why = "; and ".join(str(doubt) for doubt in data.doubts)
            record.begin(session.steps_at_start, session.restored_name, not data.doubts, why, unsaved)
        return cls(drill, record, session)

    @property
    def needs_every_boundary(self) -> bool:
        """Whether there is something to do at a boundary, whatever happens."""
        return self._looks or self._record is not None

    def boundary(self, position: Position) -> None:
        """The fit stands at a boundary; this may not return."""
        # At the first boundary of a resumed fit the metrics are not back yet; the next one stands at the same step.
        if self._record is not None and not self._session.resuming:
            self._record.boundary(position, self._session.logs)
        if self._drill is not None and self._looks:
            self._looks = not self._drill.strike(position)

    def finish(self, position: Position) -> None:
        """Training is over."""
        if self._record is not None:
            self._record.boundary(position, self._session.logs)
            self._record.sources(hidden_sources())

    def close(self) -> None:
        """The fit is left."""
        if self._drill is not None:
            self._drill.end()
        if self._record is not None:
            self._record.close()
