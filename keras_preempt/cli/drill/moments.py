"""The moments of a run at which a drill can preempt it: how they are written, and where they lie in a run."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

__all__ = ["Moment", "NoSuchMoment", "RunShape", "Target", "parse_moments", "resolve"]

_FORMS = "step:N, validation, validation:K, saving, saving:K, leaving or leaving:N"
_MOMENT = re.compile(r"(step|validation|saving|leaving)(?::([0-9]{1,12}))?")

#: At one step they come in this order: a validation follows the step, a save precedes the next one.
_ORDER = {"validation": 0, "saving": 1, "train": 2, "leaving": 3}


class NoSuchMoment(Exception):
    """The script's run has no such moment; the message says what it has, and what to do."""


@dataclass(frozen=True)
class Moment:
    """A moment as the user names it.

    Attributes:
        kind: "step", "validation", "saving" or "leaving".
        number: The step, or which validation or save, from 1; None to have it chosen.
    """

    kind: str
    number: int | None = None

    def __str__(self) -> str:
        return self.kind if self.number is None else f"{self.kind}:{self.number}"


def parse_moments(context: click.Context, option: click.Parameter, values: Sequence[str]) -> list[Moment]:
    """Reads the values of the option --at; a callback of click.

    Raises:
        click.BadParameter: one is no moment.
    """
    return [_parse(value, context, option) for value in values]


def _parse(value: str, context: click.Context, option: click.Parameter) -> Moment:
    found = _MOMENT.fullmatch(value)
    number = None if found is None or found[2] is None else int(found[2])
    if found is None or number == 0 or (found[1] == "step" and number is None):
        raise click.BadParameter(
            f"Expected {_FORMS}, with N and K from 1. Received: {value!r}. Write for example: --at step:100",
            context,
            option,
        )
    return Moment(found[1], number)


@dataclass(frozen=True)
class FitSpan:
    """Where one fit lies in a run.

    Attributes:
        number: Which of the script's fits, from 1.
        name: Its place below the directory of the drill.
        first: The steps of the run before it.
        end: The steps of the run after it.
        began_at: The steps of its model before it.
    """

    number: int
    name: str
    first: int
    end: int
    began_at: int = 0

    def step_of_run(self, step: int) -> int:
        """Turns a step of the model of this fit into one of the run."""
        return step - self.began_at + self.first

    def step_of_model(self, step: int) -> int:
        """Turns a step of the run into one of the model of this fit."""
        return step - self.first + self.began_at


@dataclass(frozen=True)
class RunShape:
    """What the undisturbed run went through.

    Attributes:
        total_steps: Training steps.
        validations: For each validation, the steps done before it, and the number of its last batch.
        saves: The steps of the checkpoints that were written while training went on.
        fits: The fits that it consists of; none is one that has no name.
        boundaries: The steps before which it can be preempted; none means all.

    Every step is counted from 0 over all fits.
    """

    total_steps: int
    validations: Sequence[tuple[int, int]] = ()
    saves: Sequence[int] = ()
    fits: Sequence[FitSpan] = ()
    boundaries: Sequence[int] = ()

    def fit_of(self, target: Target) -> FitSpan | None:
        """The fit in which a moment lies; None if fits have no names.

        What comes after the last step of a fit, such as a validation, belongs to that fit and not to the next one.
        """
        for fit in self.fits:
            begins_before = fit.first < target.step or (fit.first == target.step and target.before_step)
            if begins_before and (
                target.step < fit.end or (target.step == fit.end and not target.before_step)
            ):
                return fit
        return None

    def boundary_from(self, step: int) -> int | None:
        """The first boundary before that step or a later one; None if there is none."""
        if not self.boundaries:
            return step
        return next((each for each in sorted(self.boundaries) if each >= step), None)


@dataclass(frozen=True)
class Target:
    """Where a moment lies.

    Attributes:
        at: One of `keras_preempt.training.rehearsal.MOMENTS`.
        step: See `keras_preempt.training.rehearsal.Drill`.
        batch: The batch of a validation.
    """

    at: str
    step: int
    batch: int = 0

    @property
    def before_step(self) -> bool:
        """Whether it lies right before a step; else it is what follows one."""
        return self.at in ("train", "leaving")

    @property
    def order(self) -> tuple[int, int, int]:
        """Earlier moments come first."""
        return (self.step, _ORDER[self.at], self.batch)


def resolve(moment: Moment, shape: RunShape, chance: random.Random) -> Target:
    """Finds a moment in a run.

    Raises:
        NoSuchMoment: The run has none.
    """
    number, total = moment.number, shape.total_steps
    if moment.kind in ("step", "leaving"):
        if number is None:
            if total < 2:
                raise NoSuchMoment(
                    f"--at {moment}: the run has {total} training step, so nothing lies between two."
                )
            number = chance.randrange(1, total)
        boundary = shape.boundary_from(number)
        if number >= total or boundary is None:
            raise NoSuchMoment(
                f"--at {moment} lies beyond the end: the run has {total} training steps, counted from 0. "
                f"Choose a step from 1 to {max(shape.boundaries, default=total - 1)}."
            )
        return Target("train" if moment.kind == "step" else "leaving", boundary)
    if moment.kind == "validation":
        if not shape.validations:
            raise NoSuchMoment(
                f"--at {moment}: the script's fit runs no validation. Pass validation_data to fit, or choose "
                "another moment, such as step:N."
            )
        chosen = _nth(moment, shape.validations, number or 1, "validation")
        return Target("validation", chosen[0], (chosen[1] + 1) // 2)
    if not shape.saves:
        raise NoSuchMoment(
            f"--at {moment}: the script writes no checkpoint while it trains. Give its PreemptionCallback "
            "save_every, or the drill --save-every; or choose --at leaving, the checkpoint that answers a signal."
        )
    # The second, so that there is an older checkpoint to fall back on.
    return Target("saving", _nth(moment, shape.saves, number or min(2, len(shape.saves)), "save"))


def _nth(moment: Moment, found: Sequence[Any], number: int, what: str) -> Any:
    if number > len(found):
        noun = what if len(found) == 1 else f"{what}s"
        raise NoSuchMoment(
            f"--at {moment}: the run has {len(found)} {noun}. Choose a number from 1 to {len(found)}."
        )
    return found[number - 1]
