"""A fit's part in `keras-preempt drill`: it is sent a signal at a chosen moment, and its steps are recorded.

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
from typing import TYPE_CHECKING, Any

from keras_preempt.agreement.messages import Position
from keras_preempt.checkpoint import failpoints
from keras_preempt.drilled.places import fit_name, given
from keras_preempt.drilled.step_record import Begun, StepRecord
from keras_preempt.process import environment
from keras_preempt.training.run.participant import Hook

if TYPE_CHECKING:
    from keras_preempt.training.run.runtime import Runtime
    from keras_preempt.training.save.saves import Saves
    from keras_preempt.training.save.session import Session

MOMENTS = ("train", "validation", "saving", "leaving")
"""When a drill strikes: before a step, inside a validation, while a periodic checkpoint is being written, or
before a step and once more while the checkpoint that answers the signal is being written."""

HALF_WRITTEN = "save.before-part-list"
"""The failpoint at which a checkpoint is half-written: its files are there, and nothing says yet that they count."""

_EXAMPLE = '{"member": 0, "step": 10}'

ARRIVAL = 30.0
"""Seconds that a signal from outside has to arrive, at most: a busy machine takes milliseconds."""

AwaitNotice = Callable[[Callable[[], object], float, "Position | None"], bool]
"""Calls a function that sends or asks for a signal, and waits at most so many seconds for its notice; returns whether
it has come. Given where the main thread stands, if it is what waits. See `Runtime.await_notice`."""

_SHARED = (
    "the training and the validation data come from one shuffle, which each new iterator of either reshuffles"
)


@dataclass(frozen=True)
class Drill:
    """This process is sent a signal at a chosen moment: by whoever started it, or by itself."""

    # The training step before which it comes, counted from 0; else the least number of steps that are done when the
    # validation runs, or that the checkpoint holds.
    step: int
    at: str = "train"  # One of `MOMENTS`.
    batch: int = 0  # The least one of the validation.
    signal: Signals = signal.SIGTERM  # The notice.
    kill: bool = False  # SIGKILL comes: without a notice, or, for "leaving", after it.
    tell: str | None = None  # A named pipe into which the moment is reported.
    fit: str | None = None  # As `places.fit_name` names it; None for every fit.
    # The signal comes from whoever reads the pipe. This process then stands still until it is there, so that it comes
    # at the moment and not some steps later.
    outside: bool = False

    @classmethod
    def from_environment(cls, member: int, fit: str | None = None) -> Drill | None:
        """Reads the environment variable of the drill; None if it does not mean this worker or fit.

        Raises ValueError if it is set to something else than a drill.
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

    def begin(self, saving_step: Callable[[], int | None], await_notice: AwaitNotice | None = None) -> None:
        """Gets ready to strike while a periodic checkpoint is being written, if that is the moment.

        `saving_step` returns the step of that checkpoint, or None.
        """
        if self.at != "saving":
            return

        def half_written() -> None:
            step = saving_step()
            if step is not None and step >= self.step:
                failpoints.clear_hook(HALF_WRITTEN)
                self._send(await_notice, None, kill=self.kill)

        failpoints.set_hook(HALF_WRITTEN, half_written)

    def strike(self, position: Position, await_notice: AwaitNotice | None = None) -> bool:
        """Sends the signal if a boundary at `position` is the moment, or past it; returns whether the drill is done.

        Without `await_notice` nobody can wait for the signal, so that this process always sends it itself.
        """
        if self.at == "saving":
            return True
        step = position.step or 0
        if self.at == "validation":
            later = step > self.step or (step == self.step and position.batch >= self.batch)
            due = position.phase == "validation" and later
        else:
            due = position.phase == "train" and step >= self.step
        if not due:
            return False
        if self.at == "leaving":

            def half_written() -> None:
                failpoints.clear_hook(HALF_WRITTEN)
                # Nobody listens any more who could say that a second notice has arrived.
                self._send(await_notice if self.kill else None, None, kill=self.kill)

            failpoints.set_hook(HALF_WRITTEN, half_written)
        self._send(await_notice, position, kill=self.kill and self.at != "leaving")
        return True

    def end(self) -> None:
        failpoints.clear_hook(HALF_WRITTEN)

    def _send(self, await_notice: AwaitNotice | None, at: Position | None, *, kill: bool) -> None:
        number = signal.SIGKILL if kill else self.signal
        asks = self.outside and await_notice is not None and self.tell is not None

        def send() -> None:
            self._tell(signal=number.name, time=time.time(), **({"wanted": True} if asks else {}))
            if not asks:
                os.kill(os.getpid(), number)

        if await_notice is None or (kill and not asks):
            send()
            return
        arrived = await_notice(send, ARRIVAL, at)  # The system may interrupt another thread.
        if asks:
            self._tell(**{"arrived" if arrived else "lost": number.name})

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


class Rehearsal(Hook):
    """The drill's part in one fit or loop of one worker: its signal, and a record of the steps."""

    def __init__(
        self,
        drill: Drill | None,
        record: StepRecord | None = None,
        session: Session | None = None,
        await_notice: AwaitNotice | None = None,
    ) -> None:
        self._drill = drill
        self._waits = drill is not None  # Whether the drill still has to see boundaries.
        self._record = record
        self._session = session
        self._await_notice = await_notice
        self.every_boundary = self._waits or record is not None

    def boundary(self, position: Position, logs: Mapping[str, Any] | None = None) -> None:
        # At the first boundary of a resumed fit the metrics are not back yet; the next one stands at the same step.
        if self._record is not None and not (self._session and self._session.resuming):
            self._record.boundary(position, logs)
        if self._drill is not None and self._waits:
            self._waits = not self._drill.strike(position, self._await_notice)
            self.every_boundary = self._waits or self._record is not None

    def finish(self, position: Position, logs: Mapping[str, Any] | None) -> None:
        if self._record is not None:
            from keras_preempt.backend import pipelines

            self._record.boundary(position, logs)
            self._record.sources(pipelines.hidden_sources())

    def state_was_missed(self, callbacks: Sequence[str]) -> None:
        if self._record is not None:
            self._record.missed(callbacks)

    def close(self) -> None:
        if self._drill is not None:
            self._drill.end()
        if self._record is not None:
            self._record.close()


def of_fit(member: int, key: str, session: Session, saves: Saves, runtime: Runtime) -> Rehearsal:
    """See `hooks.for_fit`."""
    name = fit_name(key)
    record = StepRecord.from_environment(
        member, session.capture_variables, session.size, session.steps_per_execution
    )
    drill = Drill.from_environment(member, name)
    if drill is not None:
        drill.begin(lambda: saves.step_in_flight, runtime.await_notice)
    if record is not None:
        promised = session.promised(())
        record.begin(
            Begun(
                session.steps_at_start,
                session.restored_name,
                [str(doubt) for doubt in promised.doubts],
                session.callbacks.unsaved,
                fit=name,
                directory=given(name),
                files=session.callbacks.files,
                shared=[_SHARED] if session.shuffles.shared else [],
                condition=promised.condition,
            )
        )
    return Rehearsal(drill, record, session, runtime.await_notice)
