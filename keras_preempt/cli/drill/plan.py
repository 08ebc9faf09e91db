"""Plans the preemptions of a drill: moments as the user names them, where they lie in a run, and chosen workers."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

_FORMS = "step:N, validation, validation:K, saving, saving:K, leaving or leaving:N"
_MOMENT = re.compile(r"(step|validation|saving|leaving)(?::([0-9]{1,12}))?")

# Moments at the same step come in this order: a validation follows the step, a save precedes the next one.
_ORDER = {"validation": 0, "saving": 1, "train": 2, "leaving": 3}


class NoSuchMoment(click.ClickException):
    """The run has no such moment; the message says what it has, and what to do."""

    exit_code = 4


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
        click.BadParameter: One of them is not a moment.
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
    """Where a fit lies in a run.

    Attributes:
        number: Its number among the fits of the script, from 1.
        name: Its directory below that of the drill.
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
        """Converts a step of this fit's model to one of the run."""
        return step - self.began_at + self.first

    def step_of_model(self, step: int) -> int:
        """Converts a step of the run to one of this fit's model."""
        return step - self.first + self.began_at


@dataclass(frozen=True)
class RunShape:
    """What the undisturbed run went through.

    Attributes:
        total_steps: Training steps.
        validations: For each validation, the steps done before it, and the number of its last batch.
        saves: The steps of the checkpoints that were written while training went on.
        fits: The fits that it consists of; empty for a single one without a name.
        boundaries: The steps before which it can be preempted; empty for all.

    Steps are counted from 0 over all fits.
    """

    total_steps: int
    validations: Sequence[tuple[int, int]] = ()
    saves: Sequence[int] = ()
    fits: Sequence[FitSpan] = ()
    boundaries: Sequence[int] = ()

    def fit_of(self, target: Target) -> FitSpan | None:
        """Returns the fit in which a moment lies; None if fits have no names.

        A validation after the last step of a fit belongs to that fit, not to the next one.
        """
        for fit in self.fits:
            begins_before = fit.first < target.step or (fit.first == target.step and target.before_step)
            if begins_before and (
                target.step < fit.end or (target.step == fit.end and not target.before_step)
            ):
                return fit
        return None

    def boundary_from(self, step: int) -> int | None:
        """Returns the first step from this one on before which there is a boundary; None if there is none."""
        if not self.boundaries:
            return step
        return next((each for each in sorted(self.boundaries) if each >= step), None)


@dataclass(frozen=True)
class Target:
    """Where a moment lies.

    Attributes:
        at: One of `keras_preempt.drilled.rehearsal.MOMENTS`.
        step: See `keras_preempt.drilled.rehearsal.Drill`.
        batch: The batch of a validation.
    """

    at: str
    step: int
    batch: int = 0

    @property
    def before_step(self) -> bool:
        """Whether it comes right before a step; otherwise it follows one."""
        return self.at in ("train", "leaving")

    @property
    def order(self) -> tuple[int, int, int]:
        """Sorts moments by time."""
        return (self.step, _ORDER[self.at], self.batch)


def resolve(moment: Moment, shape: RunShape, chance: random.Random) -> Target:
    """Finds a moment in a run.

    Raises:
        NoSuchMoment: The run has no such moment.
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
    # The second save, so that there is an older checkpoint to fall back on.
    return Target("saving", _nth(moment, shape.saves, number or min(2, len(shape.saves)), "save"))


def _nth(moment: Moment, found: Sequence[Any], number: int, what: str) -> Any:
    if number > len(found):
        noun = what if len(found) == 1 else f"{what}s"
        raise NoSuchMoment(
            f"--at {moment}: the run has {len(found)} {noun}. Choose a number from 1 to {len(found)}."
        )
    return found[number - 1]


@dataclass(frozen=True)
class Preemption:
    """A preemption by a real signal.

    Attributes:
        member: The worker that gets it.
        step: The training step before which it comes, counted from 0 over the whole run; see
            `keras_preempt.drilled.rehearsal.Drill` for other moments than "train".
        at: One of `keras_preempt.drilled.rehearsal.MOMENTS`.
        batch: The batch of a validation.
        signal: The name of the signal that is the notice.
        kill: Whether SIGKILL is sent, without a notice, or after it at "leaving".
        fit: The fit in which it comes; None for the only one.
        fits: How many fits the run has.
    """

    member: int
    step: int
    at: str = "train"
    batch: int = 0
    signal: str = "SIGTERM"
    kill: bool = False
    fit: FitSpan | None = None
    fits: int = 1

    def to_json(self, tell: str | None = None) -> str:
        """Returns the value of the drill's environment variable.

        Args:
            tell: A named pipe in which the worker reports that its moment has come; the reader then sends the signal.
        """
        fields: dict[str, object] = {"member": self.member, "step": self.step}
        if self.fit is not None:
            fields |= {"step": self.fit.step_of_model(self.step), "fit": self.fit.name}
        if self.at != "train":
            fields["at"] = self.at
        if self.batch:
            fields["batch"] = self.batch
        if self.signal != "SIGTERM":
            fields["signal"] = self.signal
        if self.kill:
            fields["kill"] = True
        if tell is not None:
            fields |= {"tell": tell, "outside": True}
        return json.dumps(fields)

    def __str__(self) -> str:
        where = {
            "train": f"at step {self.step}",
            "validation": f"in the validation after step {self.step}",
            "saving": f"while a checkpoint was written, from step {self.step} on",
            "leaving": f"at step {self.step}, and again while it saved",
        }[self.at]
        within = ""
        if self.fit is not None and self.fits > 1:
            within = f" (fit {self.fit.number}, step {self.fit.step_of_model(self.step)} of its model)"
        return f"w{self.member} {'killed ' if self.kill else ''}{where}{within}"

    @property
    def sent(self) -> str:
        """How the signals are sent, in words."""
        if self.at == "leaving":
            second = "SIGKILL from outside" if self.kill else f"{self.signal} by its own hand"
            return f"{self.signal} from outside, then {second}"
        return f"{'SIGKILL' if self.kill else self.signal} from outside"


def plan_preemptions(
    seed: int,
    count: int,
    shape: RunShape,
    members: int,
    moments: Sequence[Moment] = (),
    signal: str = "SIGTERM",
    kill: bool = False,
) -> list[Preemption]:
    """Finds the chosen moments in the run, and draws ``count`` more and a worker for each; in the order of the run.

    Steps are drawn from 1 to ``total_steps - 1``, without repetition and none of those chosen. The same arguments give
    the same plan.

    Raises:
        NoSuchMoment: The run has no such moment, or too few steps.
    """
    chance = random.Random(seed)
    chosen = [resolve(moment, shape, chance) for moment in moments]
    steps = set(shape.boundaries or range(shape.total_steps)) - {0}
    free = sorted(steps - {target.step for target in chosen if target.at == "train"})
    if count > len(free):
        raise NoSuchMoment(
            f"Expected a run of at least {count + 1 + shape.total_steps - 1 - len(free)} training steps for "
            f"--preempt {count}. Received: a run of {shape.total_steps}. Train for longer or preempt less often."
        )
    drawn = [Target("train", step) for step in sorted(chance.sample(free, count))]
    targets = sorted([*chosen, *drawn], key=lambda target: target.order)
    return [
        Preemption(
            chance.randrange(members),
            target.step,
            target.at,
            target.batch,
            signal,
            kill,
            shape.fit_of(target),
            len(shape.fits),
        )
        for target in targets
    ]
