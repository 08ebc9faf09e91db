"""A real signal at a chosen moment, for drills: see the command `keras-preempt drill`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from signal import Signals

from keras_preempt import environment, failpoints
from keras_preempt.alignment import Position

MOMENTS = ("train", "validation", "saving", "leaving")
"""When a drill strikes: before a step, inside a validation, while a periodic checkpoint is being written, or
before a step and once more while the checkpoint that answers the signal is being written."""

HALF_WRITTEN = "save.before-part-list"
"""The failpoint at which a checkpoint is half-written: its files are there, and nothing says yet that they count."""

_EXAMPLE = '{"member": 0, "step": 10}'


@dataclass(frozen=True)
class Drill:
    """This process sends itself a signal at a chosen moment.

    Attributes:
        step: The training step before which it comes, counted from 0; else the least number of steps that are
            done when the validation runs, or that the checkpoint holds.
        at: One of `MOMENTS`.
        batch: The least batch of the validation.
        signal: What is sent as a notice.
        kill: Whether SIGKILL comes: without a notice, or, for "leaving", after it.
        tell: A named pipe into which the moment is told, or None.
    """

    step: int
    at: str = "train"
    batch: int = 0
    signal: Signals = signal.SIGTERM
    kill: bool = False
    tell: str | None = None

    @classmethod
    def from_environment(cls, member: int) -> Drill | None:
        """Reads the environment variable of the drill; None if it does not mean this worker.

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
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"Expected {environment.DRILL} to be like {_EXAMPLE}. Received: {text!r}. "
                "It is set by keras-preempt drill; unset it elsewhere."
            ) from error
        return drill

    def begin(self, saving_step: Callable[[], int | None]) -> None:
        """Gets ready to strike while a checkpoint is being written, if that is the moment.

        Args:
            saving_step: Returns the step of the periodic checkpoint that is being written, or None.
        """
        if self.at == "saving":

            def struck() -> None:
                step = saving_step()
                if step is not None and step >= self.step:
                    failpoints.unwatch(HALF_WRITTEN)
                    self._send(kill=self.kill)

            failpoints.watch(HALF_WRITTEN, struck)

    def strike(self, position: Position) -> bool:
        """Sends the signal if a boundary at `position` is the moment, or past it.

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
                self._send(kill=self.kill)

            failpoints.watch(HALF_WRITTEN, struck)
        self._send(kill=self.kill and self.at != "leaving")
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

    def _send(self, *, kill: bool) -> None:
        number = signal.SIGKILL if kill else self.signal
        self._tell(number)
        os.kill(os.getpid(), number)

    def _tell(self, number: Signals) -> None:
        if self.tell is None:
            return
        line = json.dumps({"signal": number.name, "time": time.time(), "pid": os.getpid()}) + "\n"
        # Nobody may listen any more; that must not keep the signal from coming.
        with contextlib.suppress(OSError):
            pipe = os.open(self.tell, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(pipe, line.encode())
            finally:
                os.close(pipe)
