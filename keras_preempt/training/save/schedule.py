"""When to save while no notice arrives: every so many steps, every epoch, or every so much time."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

from keras_preempt.agreement.messages import Position
from keras_preempt.checkpoint.retention import seconds_of
from keras_preempt.process import environment

NEVER = sys.maxsize
"""A boundary that no fit reaches."""


@dataclass(frozen=True)
class Schedule:
    """When to save; by at most one of these rules, and not at all without one.

    By steps and by epochs every worker finds the same boundaries by itself. If time decides, worker 0 calls a round.

    Attributes:
        steps: Save at the first boundary of training at or after each multiple of this number of training steps.
        epochs: Whether to save at the beginning of each epoch but the first of a fit.
        seconds: Seconds between two saves, as one worker's clock has it.
    """

    steps: int | None = None
    epochs: bool = False
    seconds: float | None = None

    def due(self, position: Position, saved: Position | None) -> bool:
        """Whether to save at a boundary, where the last save, or else the start of this fit, was at `saved`."""
        if self.steps is not None:
            before = 0 if saved is None else saved.step or 0
            return position.phase == "train" and (position.step or 0) // self.steps > before // self.steps
        return self.epochs and position.phase == "epoch" and position.epoch > (saved.epoch if saved else 0)

    def ahead(self, steps_per_execution: int) -> int | None:
        """Returns the most training steps that are done since the last completed save; None if steps do not decide.

        One save may be going on in the background; the one that is due after it waits for it.
        """
        return None if self.steps is None else 2 * self.steps + steps_per_execution - 1

    def steps_left(self, step: int) -> int | None:
        """Training steps until the next save, at least 1; None where steps do not decide."""
        return None if self.steps is None else self.steps - step % self.steps


def schedule_from(save_every: object) -> Schedule:
    """Turns the argument `save_every` into a schedule; raises ValueError for what it does not take."""
    if save_every is None:
        return Schedule()
    if isinstance(save_every, int) and not isinstance(save_every, bool) and save_every > 0:
        return Schedule(steps=save_every)
    if isinstance(save_every, str) and save_every == "epoch":
        return Schedule(epochs=True)
    seconds = seconds_of(save_every)
    if seconds is None:
        raise ValueError(
            "Expected save_every to be a positive number of steps, 'epoch', or a time such as '90s', '10min', "
            f"'1h' or a timedelta. Received: {save_every!r}."
        )
    return Schedule(seconds=seconds)


def schedule_of(save_every: object) -> Schedule:
    """Returns the schedule that the environment asks for, or else that of the argument `save_every`."""
    given = schedule_from(save_every)
    text = os.environ.get(environment.SAVE_EVERY)
    if not text:
        return given
    try:
        return schedule_from_text(text)
    except ValueError as error:
        raise ValueError(f"{environment.SAVE_EVERY}: {error}") from None


def schedule_from_text(text: str) -> Schedule:
    """Turns a text into a schedule; digits alone are a number of steps."""
    return schedule_from(int(text) if text.isascii() and text.isdigit() else text)


class Interval:
    """Calls a function every so many seconds, in a thread of its own, from now on; a long call delays the next."""

    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        self._seconds = seconds
        self._call = call
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keras_preempt-interval", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread. Can be called twice."""
        self._stopped.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            self._call()
