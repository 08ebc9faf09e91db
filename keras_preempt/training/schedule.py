"""When to save while nothing happens: every so many steps, every epoch, or every so much time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

from keras_preempt.agreement.alignment import Position
from keras_preempt.checkpoint.retention import seconds_of
from keras_preempt.process import environment


class Schedule(Protocol):
    """A rule by which every worker finds the same boundaries by itself, or a time that one worker watches.

    Attributes:
        seconds: Between two saves, if time decides; then worker 0 calls a round. None otherwise.
    """

    @property
    def seconds(self) -> float | None:
        """See the class."""
        ...

    def due(self, position: Position, saved: Position | None) -> bool:
        """Whether to save at a boundary, where the last save, or else the start of this fit, was at `saved`."""
        ...

    def steps_left(self, step: int) -> int | None:
        """Optimizer steps until the next save, at least 1; None where steps do not decide."""
        ...


@dataclass(frozen=True)
class Never:
    """Saves only when something happens."""

    seconds: float | None = None

    def due(self, position: Position, saved: Position | None) -> bool:
        """See `Schedule.due`."""
        return False

    def steps_left(self, step: int) -> int | None:
        """See `Schedule.steps_left`."""
        return None


@dataclass(frozen=True)
class EverySteps:
    """At the first boundary of training at or after each multiple of `steps`."""

    steps: int
    seconds: float | None = None

    def due(self, position: Position, saved: Position | None) -> bool:
        """See `Schedule.due`."""
        before = 0 if saved is None else saved.step or 0
        return position.phase == "train" and (position.step or 0) // self.steps > before // self.steps

    def steps_left(self, step: int) -> int | None:
        """See `Schedule.steps_left`."""
        return self.steps - step % self.steps


@dataclass(frozen=True)
class EveryEpoch:
    """At the beginning of each epoch but the first of a fit."""

    seconds: float | None = None

    def due(self, position: Position, saved: Position | None) -> bool:
        """See `Schedule.due`."""
        before = 0 if saved is None else saved.epoch
        return position.phase == "epoch" and position.epoch > before

    def steps_left(self, step: int) -> int | None:
        """See `Schedule.steps_left`."""
        return None


@dataclass(frozen=True)
class EveryInterval:
    """Every `seconds`, as one worker's clock has it."""

    seconds: float

    def due(self, position: Position, saved: Position | None) -> bool:
        """See `Schedule.due`."""
        return False

    def steps_left(self, step: int) -> int | None:
        """See `Schedule.steps_left`."""
        return None


def parse(save_every: object) -> Schedule:
    """Turns the argument `save_every` into a schedule.

    Args:
        save_every: None; a number of optimizer steps; "epoch"; a time such as "90s", "10min" or "1h", or a
            `datetime.timedelta`.

    Raises:
        ValueError: It is none of these, or not positive.
    """
    if save_every is None:
        return Never()
    if isinstance(save_every, int) and not isinstance(save_every, bool) and save_every > 0:
        return EverySteps(save_every)
    if save_every == "epoch":
        return EveryEpoch()
    seconds = seconds_of(save_every)
    if seconds is None:
        raise ValueError(
            "Expected save_every to be a positive number of steps, 'epoch', or a time such as '90s', '10min', "
            f"'1h' or a timedelta. Received: {save_every!r}."
        )
    return EveryInterval(seconds)


def chosen(save_every: object) -> Schedule:
    """Returns the schedule that the environment asks for, or else that of the argument `save_every`.

    Raises:
        ValueError: Either is not what `parse` takes.
    """
    given = parse(save_every)
    text = os.environ.get(environment.SAVE_EVERY)
    if not text:
        return given
    try:
        return parse_text(text)
    except ValueError as error:
        raise ValueError(f"{environment.SAVE_EVERY}: {error}") from None


def parse_text(text: str) -> Schedule:
    """Does what `parse` does, for a text, in which a number is one of steps.

    Raises:
        ValueError: It is no schedule.
    """
    return parse(int(text) if text.isascii() and text.isdigit() else text)
