"""What a drill has found: as JSON for continuous integration, and printed for people."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from keras_preempt.cli.compare import ComparedTensor, Comparison
from keras_preempt.cli.drill.cause import describe_parting
from keras_preempt.cli.drill.comparison import Parting
from keras_preempt.cli.drill.plan import Preemption, RunShape, Strike
from keras_preempt.cli.drill.runs import DrillRun
from keras_preempt.cli.drill.step_records import RunRecord
from keras_preempt.cli.terminal import Terminal
from keras_preempt.process.words import counted
from keras_preempt.report.wording import length

FORMAT = 1
"""Version of the JSON object. Fields may be added to it without another version."""

_NAMED = 10  # differences that are listed one by one
_KNOWN_PHASES = ("import and build", "startup", "restore", "train", "hold", "save", "exit")


@dataclass
class DrillResult:
    """What a drill knows so far. One that ends early leaves the rest at its defaults."""

    workers: int
    seed: int
    shape: RunShape | None = None  # Of the undisturbed run.
    record: RunRecord | None = None  # Of the undisturbed run.
    plan: Sequence[Preemption | Strike] = ()
    preempted: DrillRun | None = None
    comparison: Comparison | None = None
    parting: Parting | None = None
    causes: Sequence[str] = ()
    uncovered: Sequence[str] = ()
    seconds_lost: float | None = None  # Negative if the preempted run took less time.
    killed: Collection[int] = ()  # Starts whose worker outlived its grace period.
    files: Sequence[str] = ()  # That were compared; none without --state.

    @property
    def identical(self) -> bool:
        """Whether every fit ended with the same state, and no recorded step differs on the way there."""
        return self.comparison is not None and self.comparison.identical and self.parting is None

    def to_json(self, status: int, why_none: str | None = None) -> str:
        """Returns the JSON object that docs/drill.md describes, on one line; `why_none`: why there is no verdict."""
        comparison, parting = self.comparison or Comparison(), self.parting
        verdict = "identical" if self.identical else "different"
        spans = () if self.shape is None else self.shape.fits
        fits = [] if self.record is None else self.record.trained()
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
                {**planned.record(), "killed_after_grace": number in self.killed}
                for number, planned in enumerate(self.plan)
            ],
            "steps_lost": None if self.preempted is None else self.preempted.record.steps_run_again(),
            "seconds_lost": None if self.seconds_lost is None else round(self.seconds_lost, 3),
            "files_compared": list(self.files),
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


def print_result(terminal: Terminal, result: DrillResult, bucket: str, keep: str | None) -> None:
    """Prints what differs and why, and the verdict; `bucket` says what the bucket with faults did, if there was one."""
    run, comparison = result.preempted, result.comparison
    assert run is not None
    assert comparison is not None
    history = ["History", "equal" if comparison.history_equal else "DIFFERENT"]
    _print_comparison(terminal, comparison, ["members", str(comparison.members)], history)
    if bucket:
        terminal.line(bucket)
    plan = [each for each in result.plan if isinstance(each, Preemption)]
    _print_restarts(terminal, run, plan)
    if not result.identical:
        terminal.line(describe_parting(result.parting, len(result.plan)))
        _print_causes(terminal, result, keep)
    for line in result.uncovered:
        terminal.line(f"Not covered by this verdict: {line}.")
    style = "bold green" if result.identical else "bold red"
    terminal.line(_verdict(result, run, comparison, plan), style=style)


def print_result_of_files(terminal: Terminal, result: DrillResult, keep: str | None) -> None:
    """Prints what differs between the files of a trainer that resumes by itself, and the verdict."""
    comparison = result.comparison
    assert comparison is not None
    _print_comparison(terminal, comparison, ["files compared", str(comparison.files)])
    if not result.identical:
        _print_causes(terminal, result, keep)
    sent = ", ".join(dict.fromkeys(each.sent for each in result.plan))
    where = f"{counted(len(result.plan), 'preemption')}: {', '.join(map(str, result.plan))}; {sent}"
    compared = f"{counted(comparison.tensors, 'tensor')} and all else in {counted(comparison.files, 'file')}"
    if result.identical:
        terminal.line(f"VERDICT: identical ({compared}; {where})", style="bold green")
        return
    differing = f"{len(comparison.tensor_differences)} of {counted(comparison.tensors, 'tensor')}"
    other = f"{counted(len(comparison.state_differences), 'place')} of {counted(comparison.files, 'file')}"
    terminal.line(f"VERDICT: different ({differing}, {other}; {where})", style="bold red")


def _print_causes(terminal: Terminal, result: DrillResult, keep: str | None) -> None:
    for line in result.causes:
        terminal.line(line)
    kept = "Run it again with --keep DIR to look at both states." if keep is None else f"Kept: {keep}"
    terminal.line(f"{kept} docs/drill.md explains each cause.")


def _print_comparison(
    terminal: Terminal, comparison: Comparison, counted_first: list[str], *more: list[str]
) -> None:
    rows = [
        counted_first,
        ["tensors compared", str(comparison.tensors)],
        ["bytes compared", f"{comparison.compared_bytes:,}"],
        ["tensors different", str(len(comparison.tensor_differences))],
        ["other state different", str(len(comparison.state_differences))],
        *more,
    ]
    terminal.table("Final state, undisturbed against preempted", ["", ""], rows)
    greatest_first = sorted(comparison.tensor_differences, key=_weight, reverse=True)
    for what, differences in (
        ("tensors", [str(difference) for difference in greatest_first]),
        ("other state", comparison.state_differences),
    ):
        for line in differences[:_NAMED]:
            terminal.line(f"  different: {line}", style="red")
        if len(differences) > _NAMED:
            terminal.line(f"  and {len(differences) - _NAMED} more {what}")
    for line in comparison.set_aside[:_NAMED]:
        terminal.line(f"  does not decide: {line}")


def _weight(difference: ComparedTensor) -> tuple[bool, float]:
    # The distance of two states of a generator or iterator means nothing: they come last. A difference that cannot be
    # measured (another shape or type, a missing tensor) comes first.
    name = difference.name.rpartition(": ")[2]
    meaning = not name.startswith(("random/", "input/")) and "seed" not in name
    return meaning, float("inf") if difference.largest is None else difference.largest


def print_times(terminal: Terminal, runs: Sequence[DrillRun]) -> None:
    """Prints the seconds of each incarnation by phase, of the worker that took longest, and those of each run.

    The last column is what no worker accounts for: evaluation and the like after the fit, and the end of Python.
    """
    named = [(run, incarnation) for run in runs for incarnation in run.report.incarnations]
    seen = {phase for _, inc in named for status in inc.statuses.values() for phase in status.timing}
    phases = [phase for phase in _KNOWN_PHASES if phase in seen] + sorted(seen - set(_KNOWN_PHASES))
    rows = []
    for run, incarnation in named:
        outcome = "killed" if incarnation.number in run.lost else incarnation.verdict.outcome.value
        row = [f"{run.name} {incarnation.number}", outcome]
        row += [str(run.record.steps_run(incarnation.number)), f"{incarnation.seconds:.2f}"]
        for phase in phases:
            spent = [s.timing[phase] for s in incarnation.statuses.values() if phase in s.timing]
            row.append(f"{max(spent):.3f}" if spent else "-")
        accounted = max((sum(s.timing.values()) for s in incarnation.statuses.values()), default=0.0)
        rows.append([*row, f"{max(0.0, incarnation.seconds - accounted):.2f}"])
    columns = ["incarnation", "outcome", "steps run", "wall", *phases, "rest"]
    terminal.table("Where time went (seconds)", columns, rows)
    # Not as a loss: the undisturbed run is the first to read the libraries from the disk.
    walls = ", ".join(f"{run.name} {length(run.report.seconds)}" for run in runs)
    terminal.line(f"Wall time, start-up included: {walls}.")


def _print_restarts(terminal: Terminal, run: DrillRun, plan: Sequence[Preemption]) -> None:
    record, lost_all = run.record, False
    for number, planned in enumerate(plan):
        if not planned.kill and number not in run.killed:
            continue
        ran = record.stretch(number, "" if planned.fit is None else planned.fit.name)
        fit = record.where(number + 1)
        if ran is None or fit is None:
            continue
        how = "killed" if planned.kill else "killed at the end of its grace period"
        within = f" in fit {planned.fit.number}" if planned.fit is not None and planned.fits > 1 else ""
        whence = f"continued from step {fit.first}" if fit.restored else "started from the beginning"
        lost_all = lost_all or not fit.restored
        done, again = counted(ran.stop, "step"), counted(max(0, ran.stop - fit.first), "step")
        terminal.line(
            f"Restart {number + 1}: w{planned.member} {how}, {done} done{within}; training {whence}: {again} run again."
        )
    if lost_all:
        terminal.line(
            "Where there was no checkpoint, everything was trained again. Give PreemptionCallback save_every, or try "
            "one with --save-every 100 (steps), epoch or 10min."
        )


def _verdict(result: DrillResult, run: DrillRun, comparison: Comparison, plan: Sequence[Preemption]) -> str:
    fits = 1 if result.shape is None else len(result.shape.fits)
    unannounced = bool(run.killed) or any(preemption.kill for preemption in plan)
    again = run.record.steps_run_again()
    loss = f"{counted(again, 'step')} {'run again' if unannounced and again else 'lost'}"
    moments = [
        f"{preemption}{', killed at the end of its grace period' if number in run.killed else ''}"
        for number, preemption in enumerate(plan)
    ]
    sent = list(dict.fromkeys(preemption.sent for preemption in plan))
    if len(sent) != 1:
        sent = [
            f"{way} ({', '.join(f'w{each.member} at step {each.step}' for each in plan if each.sent == way)})"
            for way in sent
        ]
    where = f"{counted(len(plan), 'preemption')}: {', '.join(moments)}; {'; '.join(sent)}"
    of_fits = f" of {fits} fits" if fits > 1 else ""
    if result.identical:
        compared = f"{counted(comparison.tensors, 'tensor')} and all other state{of_fits}"
        return f"VERDICT: identical ({compared}; {where}; {loss})"
    differing = f"{len(comparison.tensor_differences)} of {counted(comparison.tensors, 'tensor')}{of_fits}"
    other = f"{counted(len(comparison.state_differences), 'place')} of other state"
    on_the_way = ", training steps on the way" if comparison.identical else ""
    return f"VERDICT: different ({differing}, {other}{on_the_way}; {where}; {loss})"
