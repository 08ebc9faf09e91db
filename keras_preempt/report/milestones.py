"""Tells how far a fit has come: the few events from which a report knows where the time went.

All of them are told once in an incarnation. Nothing is asked or written at a step, but at the first one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from keras_preempt.agreement.alignment import Position
from keras_preempt.process import this_process
from keras_preempt.report.events import EventLog


class Milestones:
    """The milestones of one fit of one process, which begins now.

    Args:
        events: Told of each.
    """

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._began_at = time.time()
        self._owner = os.getpid()
        self._read_at: float | None = None
        self._read_seconds = 0.0
        self._first_step: int | None = None
        self._ready_at = self._began_at
        self.awaits_step = False
        """Whether the first step is not told yet."""

    def read(self, began: float) -> None:
        """A checkpoint was read, from `began` (seconds since 1970) until now."""
        self._read_at = began
        self._read_seconds += time.time() - began

    def started(self, incarnation: int, members: int) -> None:
        """The workers have begun together."""
        self._events.emit(
            "start",
            incarnation=incarnation,
            members=members,
            process=this_process.name(),
            started_at=this_process.started_at(),
            began_at=self._began_at,
            read_at=self._read_at,
            read_seconds=self._read_seconds,
        )

    def ready(self, position: Position, epochs: int) -> None:
        """The next thing is a step, and `position` is where it stands."""
        self._first_step = position.step
        self._ready_at = time.time()
        self.awaits_step = True
        self._events.emit("ready", epoch=position.epoch, step=position.step, epochs=epochs)

    def passed(self, position: Position) -> bool:
        """The fit stands at a boundary; returns whether its first step was done just now."""
        if self.awaits_step and position.step != self._first_step:
            self.awaits_step = False
            self._events.emit("first_step", step=position.step, seconds=time.time() - self._ready_at)
            return True
        return False

    def end(self, why: str, step: Callable[[], int | None]) -> None:
        """The fit is over in this process.

        Args:
            why: How it ended.
            step: Returns how many steps were done; None if that is not known. Not called in a child of the process.
        """
        if os.getpid() == self._owner:
            self._events.emit("end", reason=why, step=step())
