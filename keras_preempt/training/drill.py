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
from typing import Protocol

from keras_preempt.agreement.alignment import Position
from keras_preempt.checkpoint import failpoints
from keras_preempt.process import environment

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

    def wait(self, count: int, timeout: float, at: Position | None) -> bool:
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
                heard.wait(before, ARRIVAL, at)  # Another thread may be the one that the system interrupts.
            return
        before = heard.stand(at)
        self._tell(signal=number.name, time=time.time(), wanted=True)
        if heard.wait(before, ARRIVAL, at):
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
