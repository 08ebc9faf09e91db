"""Plans the preemptions of a drill: moments as the user names them, where they lie in a run, and which worker."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from keras_preempt.process.words import counted

_FORMS = "step:N, validation, validation:K, saving, saving:K, leaving or leaving:N"
_FORMS_BY_OUTPUT = "With --state: line:TEXT or second:N"
_MOMENT = re.compile(r"(step|validation|saving|leaving|second)(?::([0-9]{1,12}))?|(line):(.+)")
_NUMBERED = ("step", "second")
_NOT_THE_END = 0.9  # of the lines: after a signal that comes later there would be little left to train
BY_OUTPUT = ("line", "second")
"""The kinds of moments that a drill can tell of a trainer that only its output is known of."""

# Moments at the same step come in this order: a validation follows the step, a save precedes the next one.
_ORDER = {"validation": 0, "saving": 1, "train": 2, "leaving": 3}


class NoSuchMoment(click.ClickException):
    exit_code = 4


@dataclass(frozen=True)
class Moment:
    """A moment as the user names it."""

    kind: str  # "step", "validation", "saving" or "leaving"; of any trainer "line" or "second".
    number: int | None = None  # The step, or which validation or save, from 1; None to have it drawn.
    text: str = ""  # What a line has in it.

    def __str__(self) -> str:
        return (
            f"{self.kind}:{self.text}"
            if self.text
            else ":".join(map(str, filter(None, (self.kind, self.number))))
        )


def parse_moments(context: click.Context, option: click.Parameter, values: Sequence[str]) -> list[Moment]:
    """Reads the values of the option --at; a callback of click."""
    moments = []
    for value in values:
        found = _MOMENT.fullmatch(value)
        number = None if found is None or found[2] is None else int(found[2])
        if found is None or number == 0 or (found[1] in _NUMBERED and number is None):
            raise click.BadParameter(
                f"Expected {_FORMS}, with N and K from 1. {_FORMS_BY_OUTPUT}. Received: {value!r}. Write for example: "
                "--at step:100",
                context,
                option,
            )
        moments.append(Moment(found[1] or found[3], number, found[4] or ""))
    return moments


@dataclass(frozen=True)
class FitSpan:
    number: int  # Among the fits of the script, from 1.
    name: str  # Its directory below that of the drill.
    first: int  # The steps of the run before it.
    end: int  # The steps of the run after it.
    began_at: int = 0  # The steps of its model before it.

    def step_of_run(self, step: int) -> int:
        """Converts a step of this fit's model."""
        return step - self.began_at + self.first

    def step_of_model(self, step: int) -> int:
        """Converts a step of the run."""
        return step - self.first + self.began_at


@dataclass(frozen=True)
class RunShape:
    """What the undisturbed run went through. Training steps are counted from 0 over all fits."""

    total_steps: int
    # The steps done before each, and the number of its last batch.
    validations: Sequence[tuple[int, int]] = ()
    saves: Sequence[int] = ()  # The steps of the checkpoints that were written while training went on.
    fits: Sequence[FitSpan] = ()  # Empty for a single one without a name.
    boundaries: Sequence[int] = ()  # The steps before which it can be preempted; empty for all.


def _resolve(moment: Moment, shape: RunShape, chance: random.Random) -> Preemption:
    """Finds a moment in a run: a preemption of worker 0. Raises NoSuchMoment."""
    number, total = moment.number, shape.total_steps
    if moment.kind in ("step", "leaving"):
        if number is None:
            if total < 2:
                raise NoSuchMoment(
                    f"--at {moment}: the run has {total} training step, so nothing lies between two."
                )
            number = chance.randrange(1, total)
        boundary = next((each for each in sorted(shape.boundaries) if each >= number), None)
        if not shape.boundaries:
            boundary = number
        if number >= total or boundary is None:
            raise NoSuchMoment(
                f"--at {moment} lies beyond the end: the run has {total} training steps, counted from 0. "
                f"Choose a step from 1 to {max(shape.boundaries, default=total - 1)}."
            )
        return Preemption(0, boundary, "train" if moment.kind == "step" else "leaving")
    if moment.kind == "validation":
        if not shape.validations:
            raise NoSuchMoment(
                f"--at {moment}: the script's fit runs no validation. Pass validation_data to fit, or choose "
                "another moment, such as step:N."
            )
        step, last_batch = _nth(moment, shape.validations, number or 1, "validation")
        return Preemption(0, step, "validation", (last_batch + 1) // 2)
    if not shape.saves:
        raise NoSuchMoment(
            f"--at {moment}: the script writes no checkpoint while it trains. Give its PreemptionCallback "
            "save_every, or the drill --save-every; or choose --at leaving, the checkpoint that answers a signal."
        )
    # The second save, so that there is an older checkpoint to fall back on.
    return Preemption(0, _nth(moment, shape.saves, number or min(2, len(shape.saves)), "save"), "saving")


def _nth(moment: Moment, found: Sequence[Any], number: int, what: str) -> Any:
    if number > len(found):
        noun = what if len(found) == 1 else f"{what}s"
        raise NoSuchMoment(
            f"--at {moment}: the run has {len(found)} {noun}. Choose a number from 1 to {len(found)}."
        )
    return found[number - 1]


@dataclass(frozen=True)
class Preemption:
    """A preemption by a real signal; see `keras_preempt.drilled.rehearsal.Drill` for steps at other moments."""

    member: int
    step: int  # The one before which it comes, counted from 0 over the whole run.
    at: str = "train"  # One of `keras_preempt.drilled.rehearsal.MOMENTS`.
    batch: int = 0  # Of a validation.
    signal: str = "SIGTERM"  # The notice.
    kill: bool = False  # SIGKILL is sent, without a notice, or after it at "leaving".
    fit: FitSpan | None = None  # None for the only one.
    fits: int = 1  # How many the run has.

    def to_json(self, tell: str | None = None) -> str:
        """Returns the value of the drill's environment variable.

        Into `tell`, a named pipe, the worker reports that its moment has come; the reader then sends the signal.
        """
        fields = {name: getattr(self, name) for name in ("member", "step", "at", "batch", "signal", "kill")}
        if self.fit is not None:
            fields |= {"step": self.fit.step_of_model(self.step), "fit": self.fit.name}
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

    def record(self) -> dict[str, Any]:
        """What the JSON of a drill says of it."""
        return {
            "worker": self.member,
            "step": self.step,
            "fit": 1 if self.fit is None else self.fit.number,
            "moment": "step" if self.at == "train" else self.at,
            "when": str(self),
            "sent": self.sent,
        }

    @property
    def sent(self) -> str:
        """How the signals are sent, in words."""
        if self.at == "leaving":
            second = "SIGKILL from outside" if self.kill else f"{self.signal} sent by the worker to itself"
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
    """Finds the given moments in the run, and draws `count` more and a worker for each; in the order of the run.

    Steps are drawn from 1 to `total_steps - 1`, without repetition and none of those given. The same arguments give
    the same plan. Raises NoSuchMoment if the run has no such moment, or too few steps.
    """
    chance = random.Random(seed)
    given = [_resolve(moment, shape, chance) for moment in moments]
    steps = set(shape.boundaries or range(shape.total_steps)) - {0}
    free = sorted(steps - {each.step for each in given if each.at == "train"})
    if count > len(free):
        raise NoSuchMoment(
            f"Expected a run of at least {count + 1 + shape.total_steps - 1 - len(free)} training steps for "
            f"--preempt {count}. Received: a run of {shape.total_steps}. Train for longer or preempt less often."
        )
    drawn = [Preemption(0, step) for step in sorted(chance.sample(free, count))]
    plan = []
    for each in sorted([*given, *drawn], key=lambda each: (each.step, _ORDER[each.at], each.batch)):
        # The step before which it comes, or which it follows: a validation after the last step of a fit belongs to it.
        step = each.step if each.at in ("train", "leaving") else each.step - 1
        fit = next((fit for fit in shape.fits if fit.first <= step < fit.end), None)
        member = chance.randrange(members)
        plan.append(replace(each, member=member, signal=signal, kill=kill, fit=fit, fits=len(shape.fits)))
    return plan


@dataclass(frozen=True)
class Strike:
    """One preemption of a trainer that only its output is known of."""

    member: int
    moment: Moment  # A line by its number in all starts, or by its text, which comes in the start; or a second of it.
    signal: str = "SIGTERM"
    kill: bool = False
    ended: int | None = None  # The exit status of that worker, as a shell tells it, once it has ended.

    def __str__(self) -> str:
        number, text = self.moment.number, self.moment.text
        where = f"at the line with {text!r}" if text else f"at line {number} of its output"
        if self.moment.kind == "second":
            where = f"after {number} s of its start"
        left = "" if self.ended is None else f" (exit status {self.ended})"
        return f"w{self.member} {'killed ' if self.kill else ''}{where}{left}"

    @property
    def sent(self) -> str:
        """How the signal is sent, in words."""
        return f"{'SIGKILL' if self.kill else self.signal} from outside"

    def record(self) -> dict[str, Any]:
        """What the JSON of a drill says of it."""
        return {
            "worker": self.member,
            "step": None,
            "fit": None,
            "moment": self.moment.kind,
            "when": str(replace(self, ended=None)),
            "sent": self.sent,
        }


def plan_strikes(
    seed: int, wanted: Sequence[Moment] | int, lines: int, members: int, signal: str, kill: bool
) -> list[Strike]:
    """Takes the moments that are wanted in their order, or draws so many lines of output; one for each start.

    Raises NoSuchMoment if the undisturbed run has printed too few `lines`.
    """
    chance = random.Random(seed)
    moments = [] if isinstance(wanted, int) else wanted
    if isinstance(wanted, int):
        count = wanted
        last = max(count, int(lines * _NOT_THE_END))
        if last >= lines:
            raise NoSuchMoment(
                f"Expected at least {counted(count + 1, 'line')} of output for {counted(count, 'preemption')}. "
                f"Received: {counted(lines, 'line')}. Let the script print its progress, or name a time: --at second:20"
            )
        moments = [Moment("line", line) for line in sorted(chance.sample(range(1, last + 1), count))]
    return [Strike(chance.randrange(members), moment, signal, kill) for moment in moments]
