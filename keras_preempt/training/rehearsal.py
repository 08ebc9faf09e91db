"""What a fit does for `keras-preempt drill` and never otherwise: it records its steps, and it is struck."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from keras_preempt.agreement.alignment import Position
from keras_preempt.backend.keras.running_fit import RunningFit
from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.state.callbacks import CallbackStates
from keras_preempt.state.model import ModelState
from keras_preempt.training import drill_place
from keras_preempt.training.drill import Drill
from keras_preempt.training.promise import Promise
from keras_preempt.training.runtime import Runtime
from keras_preempt.training.saver import size_of
from keras_preempt.training.saves import Saves
from keras_preempt.training.session import Session
from keras_preempt.training.step_record import StepRecord

_SHARED = (
    "the training and the validation data come from one shuffle, which each new iterator of either reshuffles"
)


class Rehearsal:
    """The drill's part in one fit of one worker.

    Args:
        drill: When to strike, or None.
        record: Where to record, or None.
        session: The fit.
        heard: The notices of this process.
    """

    def __init__(
        self, drill: Drill | None, record: StepRecord | None, session: Session, heard: _Notices
    ) -> None:
        self._drill = drill
        self._looks = drill is not None  # Whether the drill has to see boundaries.
        self._record = record
        self._session = session
        self._heard = heard

    @classmethod
    def from_environment(
        cls,
        member: int,
        model_state: ModelState,
        fit: RunningFit,
        session: Session,
        saves: Saves,
        callbacks: CallbackStates,
        runtime: Runtime,
        place: str,
        promise: Callable[[], Promise],
    ) -> Rehearsal:
        """Gets ready for what the environment asks for; it costs nothing if that is nothing.

        Args:
            member: The number of this worker.
            model_state: The variables.
            fit: What Keras is doing.
            session: The fit.
            saves: Its saves.
            callbacks: The other callbacks.
            runtime: Where notices arrive.
            place: The key of the store in which the fit keeps its checkpoints.
            promise: Gathers what was told about how exactly the run continues, but for the callbacks.

        Raises:
            ValueError: The variable of the drill is set to something else.
            OSError: The record cannot be opened.
        """

        def capture() -> Mapping[str, Array]:
            if not model_state.complete:
                model_state.look_again()  # Variables may have been made since, and reset.
            return {**model_state.capture_mirrored(), **model_state.capture_local()}

        name = drill_place.fit_name(place)
        heard = _Notices(runtime)
        size = size_of(model_state.signature())
        record = StepRecord.from_environment(member, capture, size, fit.feed.steps_per_execution)
        drill = Drill.from_environment(member, name)
        if drill is not None:
            drill.begin(lambda: saves.step_in_flight, heard)
        if record is not None:
            promised = promise()
            record.begin(
                session.steps_at_start,
                session.restored_name,
                not promised.doubts,
                "; and ".join(str(doubt) for doubt in promised.doubts),
                callbacks.unsaved,
                fit=name,
                directory=drill_place.given(name),
                files=callbacks.files,
                shared=[_SHARED] if session.shuffles.shared else [],
            )
        return cls(drill, record, session, heard)

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
            self._looks = not self._drill.strike(position, self._heard)

    def finish(self, position: Position) -> None:
        """Training is over."""
        if self._record is not None:
            self._record.boundary(position, self._session.logs)
            self._record.sources(backend().datasets.hidden_sources())

    def close(self) -> None:
        """The fit is left."""
        if self._drill is not None:
            self._drill.end()
        if self._record is not None:
            self._record.close()


class _Notices:
    """Counts what comes to a runtime; see `keras_preempt.training.drill.Heard`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def stand(self, at: Position | None) -> int:
        return self._runtime.stand(at)

    def wait(self, count: int, timeout: float, at: Position | None) -> bool:
        return self._runtime.heard_more_than(count, timeout, at)
