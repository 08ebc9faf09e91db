"""Chooses when and whom a drill preempts."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from keras_preempt.cli.drill.moments import FitSpan, Moment, NoSuchMoment, RunShape, Target, resolve

__all__ = ["Preemption", "plan_preemptions"]


@dataclass(frozen=True)
class Preemption:
    """One real signal.

    Attributes:
        member: the worker that gets it.
        step: the training step before which it gets it, counted from 0 over the whole run; see
            `keras_preempt.training.rehearsal.Drill` for the other moments.
        at: one of `keras_preempt.training.rehearsal.MOMENTS`.
        batch: the batch of a validation.
        signal: the name of the signal that is the notice.
        kill: whether it is SIGKILL: without a notice, or after it if it is "leaving".
        fit: the fit in which it comes; None for the only one.
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
            tell: a named pipe into which the worker tells that the moment is there, for the signal to come from
                whoever reads it.
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

    @property
    def unannounced(self) -> bool:
        """Whether there is no notice, so that no checkpoint answers it."""
        return self.kill and self.at != "leaving"

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
    """Finds the chosen moments in the run, draws ``count`` more, and a member for each; in the run's order.

    Steps are drawn from 1 to ``total_steps - 1``, each once and none of those chosen. The same arguments give the
    same plan.

    Raises:
        NoSuchMoment: the run has no such moment, or too few steps.
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
