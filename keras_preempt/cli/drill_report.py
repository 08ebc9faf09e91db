"""What a drill prints: what was compared, what was lost, where time went, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from keras_preempt.cli.compare import Comparison, TensorDifference
from keras_preempt.cli.drill_runs import DrillRun
from keras_preempt.cli.preemption_plan import Preemption
from keras_preempt.cli.terminal import Terminal
from keras_preempt.cluster import Incarnation

__all__ = ["print_comparison", "print_restarts", "print_times", "steps_run_twice", "verdict_line"]

_NAMED = 10  # differences that are listed one by one
_KNOWN_PHASES = ("import and build", "startup", "restore", "train", "hold", "save", "exit")


def steps_run_twice(run: DrillRun, total_steps: int) -> int | None:
    """Returns the training steps that had to be run again, or None if a killed worker left no count."""
    counts = [_steps_run(run, incarnation) for incarnation in run.report.incarnations]
    known = [count for count in counts if count is not None]
    return sum(known) - total_steps if len(known) == len(counts) else None


def print_comparison(terminal: Terminal, comparison: Comparison) -> None:
    """Prints what was compared, and the greatest differences."""
    history = "equal" if comparison.history_equal else "DIFFERENT"
    rows = [
        ["members", str(comparison.members)],
        ["tensors compared", str(comparison.tensors)],
        ["bytes compared", f"{comparison.compared_bytes:,}"],
        ["tensors different", str(len(comparison.tensor_differences))],
        ["other state different", str(len(comparison.state_differences))],
        ["History", history],
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


def _weight(difference: TensorDifference) -> tuple[bool, float]:
    # How far two states of a generator or of an iterator are from each other means nothing: they come last. What
    # cannot be measured (another shape or type, one that is missing) comes first.
    name = difference.name.rpartition(": ")[2]
    meaning = not name.startswith(("random/", "input/")) and "seed" not in name
    return meaning, float("inf") if difference.max_difference is None else difference.max_difference


def print_times(terminal: Terminal, runs: Sequence[DrillRun]) -> None:
    """Prints seconds by incarnation and phase: for each phase those of the worker that took longest.

    The last column is what no worker accounts for: evaluation and the like after the fit, and Python's own end.
    """
    named = [(run, incarnation) for run in runs for incarnation in run.report.incarnations]
    seen = {phase for _, inc in named for status in inc.statuses.values() for phase in status.timing}
    phases = [phase for phase in _KNOWN_PHASES if phase in seen] + sorted(seen - set(_KNOWN_PHASES))
    rows = []
    for run, incarnation in named:
        outcome = "killed" if incarnation.number in run.lost else incarnation.verdict.outcome.value
        row = [f"{run.name} {incarnation.number}", outcome]
        steps = _steps_run(run, incarnation)
        row += ["?" if steps is None else str(steps), f"{incarnation.seconds:.2f}"]
        for phase in phases:
            spent = [s.timing[phase] for s in incarnation.statuses.values() if phase in s.timing]
            row.append(f"{max(spent):.3f}" if spent else "-")
        accounted = max((sum(s.timing.values()) for s in incarnation.statuses.values()), default=0.0)
        rows.append([*row, f"{max(0.0, incarnation.seconds - accounted):.2f}"])
    columns = ["incarnation", "outcome", "steps run", "wall", *phases, "rest"]
    terminal.table("Where time went (seconds)", columns, rows)


def print_restarts(terminal: Terminal, run: DrillRun, plan: Sequence[Preemption]) -> None:
    """Prints what each loss of a worker that had no time to save has cost, and what to do about it."""
    record, lost_all = run.record, False
    for number, planned in enumerate(plan):
        if not planned.kill and number not in run.killed:
            continue
        began, done = record.began_at(number), record.steps_run(number)
        again = record.began_at(number + 1)
        if began is None or done is None or again is None:
            continue
        how = "killed" if planned.kill else "killed at the end of its grace period"
        restored = record.restored(number + 1)
        whence = f"went on from step {again}" if restored else "began anew"
        lost_all = lost_all or not restored
        terminal.line(
            f"Restart {number + 1}: w{planned.member} {how}, {_steps(began + done)} done; training {whence}: "
            f"{_steps(began + done - again)} run again."
        )
    if lost_all:
        terminal.line(
            "Where there was no checkpoint, everything was trained again. Give PreemptionCallback save_every, or try "
            "one with --save-every 100 (steps), epoch or 10min."
        )


def verdict_line(
    comparison: Comparison, run: DrillRun, plan: Sequence[Preemption], twice: int | None, lost_seconds: float
) -> str:
    """Returns the line that a drill ends with.

    Args:
        comparison: of the final states.
        run: the preempted one.
        plan: how it was preempted.
        twice: steps that were run again; None if that is not known.
        lost_seconds: how much longer it took than the undisturbed one.
    """
    unannounced = bool(run.killed) or any(preemption.kill for preemption in plan)
    if twice is None:
        steps = "unknown steps lost"
    elif unannounced and twice:
        steps = f"{_steps(twice)} run again"
    else:
        steps = f"{twice} steps lost"
    loss = f"{steps}, {lost_seconds:.1f} s lost"
    noun = "preemption" if len(plan) == 1 else "preemptions"
    told = [
        f"{preemption}{', killed at the end of its grace period' if number in run.killed else ''}"
        for number, preemption in enumerate(plan)
    ]
    where = f"{len(plan)} {noun}: {', '.join(told)}"
    if comparison.identical:
        return f"VERDICT: identical ({comparison.tensors} tensors and all other state; {where}; {loss})"
    differing = f"{len(comparison.tensor_differences)} of {comparison.tensors} tensors"
    other = f"{len(comparison.state_differences)} places of other state"
    return f"VERDICT: different ({differing}, {other}; {where}; {loss})"


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"


def _steps_run(run: DrillRun, incarnation: Incarnation) -> int | None:
    counts = [s.steps_run for s in incarnation.statuses.values() if s.steps_run is not None]
    return max(counts) if counts else run.record.steps_run(incarnation.number)
