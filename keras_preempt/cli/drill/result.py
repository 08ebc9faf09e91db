"""What a drill has found, and its form in JSON for continuous integration."""

from __future__ import annotations

import json
import math
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
class DrillResult:
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

        `status` is the exit status, and `why_none` says why there is no verdict.
        """
        comparison, parting = self.comparison or Comparison(), self.parting
        verdict = "identical" if self.identical else "different"
        spans = () if self.shape is None else self.shape.fits
        fits = [] if self.record is None else self.record.trained()
        killed = {} if self.preempted is None else self.preempted.killed
        value: dict[str, Any] = {
            "format": FORMAT,
            "verdict": verdict if why_none is None else "none",
            "exit_status": status,
            "why_none": why_none,
            "workers": self.workers,
            "seed": self.seed,
            "steps": None if self.shape is None else self.shape.total_steps,
            "fits": [
                {
                    "fit": span.number,
                    "directory": fit.directory,
                    "steps": span.end - span.first,
                    "promised_exact": bool(fit.begin["exact"]) and not fit.begin.get("condition"),
                    "promised_if": fit.begin.get("condition") or None,
                    "promise": "; and ".join(fit.doubts),
                }
                for span, fit in zip(spans, fits, strict=False)
            ],
            "preemptions": [
                {
                    "worker": planned.member,
                    "step": planned.step,
                    "fit": 1 if planned.fit is None else planned.fit.number,
                    "moment": "step" if planned.at == "train" else planned.at,
                    "sent": planned.sent,
                    "killed_after_grace": number in killed,
                }
                for number, planned in enumerate(self.plan)
            ],
            "steps_lost": None if self.preempted is None else self.preempted.record.steps_run_again(),
            "seconds_lost": None if self.seconds_lost is None else round(self.seconds_lost, 3),
            "tensors_compared": comparison.tensors,
            "bytes_compared": comparison.compared_bytes,
            "tensors_different": [
                {
                    "name": each.name,
                    "what": each.difference,
                    "by_at_most": None if not math.isfinite(each.largest or 0) else each.largest,
                }
                for each in comparison.tensor_differences
            ],
            "other_state_different": list(comparison.state_differences),
            "does_not_decide": list(comparison.set_aside),
            "first_different_step": None
            if parting is None
            else {
                "fit": parting.fit,
                "step": parting.step,
                "epoch": parting.epoch,
                "worker": parting.member,
                "restart": parting.incarnation,
                "what": list(parting.groups),
            },
            "likely_causes": list(self.causes),
            "uncovered": list(self.uncovered),
        }
        return json.dumps(value, allow_nan=False)
