"""What a fit does in `keras-preempt drill` and never otherwise: it gets a signal at a chosen moment, and is recorded.

Nothing here imports Keras or TensorFlow, so that a stand-in for a training script can be drilled as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from signal import Signals
from typing import TYPE_CHECKING, Any, Protocol

from keras_preempt.agreement.alignment import Position
from keras_preempt.checkpoint import failpoints
from keras_preempt.process import environment
from keras_preempt.training import drill_place
from keras_preempt.training.step_record import StepRecord

if TYPE_CHECKING:
    from keras_preempt.training.saves import Saves
    from keras_preempt.training.session import Session

MOMENTS = ("train", "validation", "saving", "leaving")
"""When a drill strikes: before a step, inside a validation, while a periodic checkpoint is being written, or
before a step and once more while the checkpoint that answers the signal is being written."""

HALF_WRITTEN = "save.before-part-list"
"""The failpoint at which a checkpoint is half-written: its files are there, and nothing says yet that they count."""

_EXAMPLE = '{"member": 0, "step": 10}'

ARRIVAL = 30.0
"""Seconds that a signal from outside has to arrive, at most: a busy machine takes milliseconds."""


class Heard(Protocol):
    """Where the notices of this process arrive."""

    def stand(self, at: Position | None) -> int:
        """Makes ready to wait, before the signal is asked for; returns how many have come so far.

        Args:
            at: Where the main thread stands, if it is what will wait.
        """
        ...

    def heard_more_than(self, count: int, timeout: float, at: Position | None) -> bool:
        """Waits at most `timeout` seconds for more than `count`; returns whether they have come.

        Args:
            count: How many had come.
            timeout: Seconds.
            at: Where the main thread stands, if it is what waits.
        """
        ...


@dataclass(frozen=True)
class Drill:
    """This process is sent a signal at a chosen moment: by whoever started it, or by itself.

    Attributes:
        step: The training step before which it comes, counted from 0; else the least number of steps that are
            done when the validation runs, or that the checkpoint holds.
        at: One of `MOMENTS`.
        batch: The least batch of the validation.
        signal: What is sent as a notice.
        kill: Whether SIGKILL comes: without a notice, or, for "leaving", after it.
        tell: A named pipe into which the moment is told, or None.
        fit: The fit that is meant, as `keras_preempt.training.drill_place` names it; None for every fit.
        outside: Whether the signal comes from whoever reads the pipe. This process then stands still until it is
            there, so that it comes at the moment and not some steps later.
    """

    step: int
    at: str = "train"
    batch: int = 0
    signal: Signals = signal.SIGTERM
    kill: bool = False
    tell: str | None = None
    fit: str | None = None
    outside: bool = False

    @classmethod
    def from_environment(cls, member: int, fit: str | None = None) -> Drill | None:
        """Reads the environment variable of the drill; None if it does not mean this worker, or not this fit.

        Raises:
            ValueError: The variable is set to something else than a drill.
        """
        text = os.environ.get(environment.DRILL)
        if not text:
            return None
        try:
            wanted = json.loads(text)
            if int(wanted["member"]) != member:
                return None
            drill = cls(
                step=int(wanted["step"]),
                at=MOMENTS[MOMENTS.index(wanted.get("at", "train"))],
                batch=int(wanted.get("batch", 0)),
                signal=Signals[wanted.get("signal", "SIGTERM")],
                kill=bool(wanted.get("kill", False)),
                tell=None if wanted.get("tell") is None else str(wanted["tell"]),
                fit=None if wanted.get("fit") is None else str(wanted["fit"]),
                outside=bool(wanted.get("outside", False)),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"Expected {environment.DRILL} to be like {_EXAMPLE}. Received: {text!r}. "
                "It is set by keras-preempt drill; unset it elsewhere."
            ) from error
        return None if drill.fit not in (None, fit) else drill

    def begin(self, saving_step: Callable[[], int | None], heard: Heard | None = None) -> None:
        """Gets ready to strike while a checkpoint is being written, if that is the moment.

        Args:
            saving_step: Returns the step of the periodic checkpoint that is being written, or None.
            heard: See `strike`.
        """
        if self.at == "saving":

            def struck() -> None:
                step = saving_step()
                if step is not None and step >= self.step:
                    failpoints.unwatch(HALF_WRITTEN)
                    self._send(heard, None, kill=self.kill)

            failpoints.watch(HALF_WRITTEN, struck)

    def strike(self, position: Position, heard: Heard | None = None) -> bool:
        """Sends the signal if a boundary at `position` is the moment, or past it.

        Args:
            position: Where training stands.
            heard: Where notices arrive; None where that cannot be waited for, so that the signal is this process' own.

        Returns:
            Whether the drill needs no further look at a boundary.
        """
        if self.at == "saving":
            return True
        if not self._is_the_moment(position):
            return False
        if self.at == "leaving":

            def struck() -> None:
                failpoints.unwatch(HALF_WRITTEN)
                # A second notice is heard by nobody who could say so: it is this process' own.
                self._send(heard if self.kill else None, None, kill=self.kill)

            failpoints.watch(HALF_WRITTEN, struck)
        self._send(heard, position, kill=self.kill and self.at != "leaving")
        return True

    def end(self) -> None:
        """The moment did not come in this fit."""
        failpoints.unwatch(HALF_WRITTEN)

    def _is_the_moment(self, position: Position) -> bool:
        step = position.step or 0
        if self.at == "validation":
            within = position.phase == "validation"
            return within and (step > self.step or (step == self.step and position.batch >= self.batch))
        return position.phase == "train" and step >= self.step

    def _send(self, heard: Heard | None, at: Position | None, *, kill: bool) -> None:
        number = signal.SIGKILL if kill else self.signal
        if not self.outside or heard is None or self.tell is None:
            before = None if heard is None or kill else heard.stand(at)
            self._tell(signal=number.name, time=time.time())
            os.kill(os.getpid(), number)
            if heard is not None and before is not None:
                heard.heard_more_than(
                    before, ARRIVAL, at
                )  # Another thread may be the one that the system interrupts.
            return
        before = heard.stand(at)
        self._tell(signal=number.name, time=time.time(), wanted=True)
        if heard.heard_more_than(before, ARRIVAL, at):
            self._tell(arrived=number.name)
        else:
            self._tell(lost=number.name)

    def _tell(self, **what: object) -> None:
        if self.tell is None:
            return
        line = json.dumps({**what, "pid": os.getpid()}) + "\n"
        # Nobody may listen any more; that must not keep the signal from coming.
        with contextlib.suppress(OSError):
            pipe = os.open(self.tell, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(pipe, line.encode())
            finally:
                os.close(pipe)


_SHARED = (
    "the training and the validation data come from one shuffle, which each new iterator of either reshuffles"
)


class Rehearsal:
    """The drill's part in one fit of one worker.

    Args:
        drill: When to strike, or None.
        record: Where to record, or None.
        session: The state of the fit.
        heard: Where the notices of this process arrive.
    """

    def __init__(
        self, drill: Drill | None, record: StepRecord | None, session: Session, heard: Heard
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
        place: str,
        session: Session,
        saves: Saves,
        heard: Heard,
    ) -> Rehearsal:
        """Gets ready for what the environment asks for; it costs nothing if that is nothing.

        Args:
            member: The number of this worker.
            place: The key of the store in which the fit keeps its checkpoints.
            session: The state of the fit.
            saves: Its saves.
            heard: Where the notices of this process arrive.

        Raises:
            ValueError: The variable of the drill is set to something else.
            OSError: The record cannot be opened.
        """
        name = drill_place.fit_name(place)
        record = StepRecord.from_environment(
            member, session.capture_variables, session.size, session.steps_per_execution
        )
        drill = Drill.from_environment(member, name)
        if drill is not None:
            drill.begin(lambda: saves.step_in_flight, heard)
        if record is not None:
            promised = session.promised(())
            record.begin(
                session.steps_at_start,
                session.restored_name,
                not promised.doubts,
                [str(doubt) for doubt in promised.doubts],
                session.callbacks.unsaved,
                fit=name,
                directory=drill_place.given(name),
                files=session.callbacks.files,
                shared=[_SHARED] if session.shuffles.shared else [],
                condition=promised.condition,
            )
        return cls(drill, record, session, heard)

    @property
    def needs_every_boundary(self) -> bool:
        """Whether there is something to do at a boundary, whatever happens."""
        return self._looks or self._record is not None

    def boundary(self, position: Position, logs: Mapping[str, Any] | None) -> None:
        """The fit stands at a boundary; this may not return.

        Args:
            position: Where.
            logs: The logs of the last execution.
        """
        # At the first boundary of a resumed fit the metrics are not back yet; the next one stands at the same step.
        if self._record is not None and not self._session.resuming:
            self._record.boundary(position, logs)
        if self._drill is not None and self._looks:
            self._looks = not self._drill.strike(position, self._heard)

    def finish(self, position: Position, logs: Mapping[str, Any] | None) -> None:
        """Training is over.

        Args:
            position: Where the fit stands.
            logs: The logs of the last execution.
        """
        if self._record is not None:
            from keras_preempt.backend.seam import backend

            self._record.boundary(position, logs)
            self._record.sources(backend().datasets.hidden_sources())

    def state_was_missed(self, missed: Sequence[str]) -> None:
        """An error leaves the fit, in callbacks whose state was not kept.

        Args:
            missed: Those callbacks, and what was not kept.
        """
        if self._record is not None:
            self._record.missed(missed)

    def close(self) -> None:
        """The fit is left."""
        if self._drill is not None:
            self._drill.end()
        if self._record is not None:
            self._record.close()
