"""The findings of a drill, and their form in JSON for continuous integration."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from keras_preempt.cli.compare import Comparison
from keras_preempt.cli.drill.comparison import Parting
from keras_preempt.cli.drill.plan import Preemption, RunShape
from keras_preempt.cli.drill.runs import DrillRun
from keras_preempt.cli.drill.step_records import RunRecord

FORMAT = 1
"""Version of the JSON object. Fields may be added to it without another version."""


@dataclass
class Findings:
    """What a drill knows so far. One that ends early leaves the rest at its defaults.

    Attributes:
        workers: How many workers there are.
        seed: The seed by which moments and workers were drawn.
        shape: What the undisturbed run went through.
        record: The record of that run.
        plan: The preemptions.
        preempted: The preempted run.
        comparison: The comparison of the final states.
        parting: Where the recorded steps part.
        causes: Why the runs are likely to differ, in words.
        uncovered: What the verdict does not cover, in words.
        seconds_lost: How much longer the preempted run took, starts included; negative if it took less.
    """

    workers: int
    seed: int
    shape: RunShape | None = None
    record: RunRecord | None = None
    plan: Sequence[Preemption] = ()
    preempted: DrillRun | None = None
    comparison: Comparison | None = None
    parting: Parting | None = None
    causes: Sequence[str] = field(default_factory=list)
    uncovered: Sequence[str] = field(default_factory=list)
    seconds_lost: float | None = None

    @property
    def identical(self) -> bool:
        """Whether every fit ended with the same state, and no recorded step differs on the way there."""
        return self.comparison is not None and self.comparison.identical and self.parting is None

    def to_json(self, status: int, why_none: str | None = None) -> str:
        """Returns the JSON object that docs/drill.md describes, on one line.

        Args:
            status: The exit status.
            why_none: Why there is no verdict; None if there is one.
        """
        verdict = "none" if why_none is not None else "identical" if self.identical else "different"
        comparison = self.comparison or Comparison()
        value: dict[str, Any] = {
            "format": FORMAT,
            "verdict": verdict,
            "exit_status": status,
            "why_none": why_none,
            "workers": self.workers,
            "seed": self.seed,
            "steps": None if self.shape is None else self.shape.total_steps,
            "fits": self._fits(),
            "preemptions": [self._preemption(number) for number in range(len(self.plan))],
            "steps_lost": None if self.preempted is None else self.preempted.record.steps_run_again(),
            "seconds_lost": None if self.seconds_lost is None else round(self.seconds_lost, 3),
            "tensors_compared": comparison.tensors,
            "bytes_compared": comparison.compared_bytes,
            "tensors_different": [
                {"name": each.name, "what": each.reason, "by_at_most": _number(each.max_difference)}
                for each in comparison.tensor_differences
            ],
            "other_state_different": list(comparison.state_differences),
            "does_not_decide": list(comparison.set_aside),
            "first_different_step": None if self.parting is None else _parting(self.parting),
            "likely_causes": list(self.causes),
            "uncovered": list(self.uncovered),
        }
        return json.dumps(value, allow_nan=False)

    def _fits(self) -> list[dict[str, Any]]:
        if self.shape is None or self.record is None:
            return []
        said = self.record.promises
        return [
            {
                "fit": number,
                "directory": directory,
                "steps": span.end - span.first,
                "promised_exact": exact and not condition,
                "promised_if": condition or None,
                "promise": words,
            }
            for number, (span, (directory, exact, condition, words)) in enumerate(
                zip(self.shape.fits, said, strict=False), start=1
            )
        ]

    def _preemption(self, number: int) -> dict[str, Any]:
        planned = self.plan[number]
        return {
            "worker": planned.member,
            "step": planned.step,
            "fit": 1 if planned.fit is None else planned.fit.number,
            "moment": "step" if planned.at == "train" else planned.at,
            "sent": planned.sent,
            "killed_after_grace": self.preempted is not None and number in self.preempted.killed,
        }


def _number(value: float | None) -> float | None:
    return None if value is None or value != value or value in (float("inf"), float("-inf")) else value


def _parting(parting: Parting) -> dict[str, Any]:
    return {
        "fit": parting.fit,
        "step": parting.step,
        "epoch": parting.epoch,
        "worker": parting.member,
        "restart": parting.incarnation,
        "what": list(parting.groups),
    }
