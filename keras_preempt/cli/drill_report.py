"""What a drill prints: what was compared, what was lost, where time went, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from keras_preempt.cli.compare import Comparison
from keras_preempt.cli.preemption_plan import Preemption
from keras_preempt.cli.terminal import Terminal
from keras_preempt.cluster import Incarnation, SupervisorReport

__all__ = ["print_comparison", "print_times", "steps_lost", "verdict_line"]

_NAMED = 10  # differences that are listed one by one
_KNOWN_PHASES = ("import and build", "startup", "restore", "train", "hold", "save", "exit")


def steps_lost(report: SupervisorReport, total_steps: int) -> int | None:
    """Returns the training steps that had to be run again, or None if a killed worker left no count."""
    counts = [_steps_run(incarnation) for incarnation in report.incarnations]
    known = [count for count in counts if count is not None]
    return sum(known) - total_steps if len(known) == len(counts) else None


def print_comparison(terminal: Terminal, comparison: Comparison) -> None:
    """Prints what was compared, and the first differences."""
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
    for what, differences in (
        ("tensors", [str(difference) for difference in comparison.tensor_differences]),
        ("other state", comparison.state_differences),
    ):
        for line in differences[:_NAMED]:
            terminal.line(f"  different: {line}", style="red")
        if len(differences) > _NAMED:
            terminal.line(f"  and {len(differences) - _NAMED} more {what}")


def print_times(terminal: Terminal, runs: Sequence[tuple[str, SupervisorReport]]) -> None:
    """Prints seconds by incarnation and phase: for each phase those of the worker that took longest.

    The last column is what no worker accounts for, such as starting Python and importing TensorFlow.
    """
    named = [(name, incarnation) for name, report in runs for incarnation in report.incarnations]
    seen = {phase for _, inc in named for status in inc.statuses.values() for phase in status.timing}
    phases = [phase for phase in _KNOWN_PHASES if phase in seen] + sorted(seen - set(_KNOWN_PHASES))
    rows = []
    for name, incarnation in named:
        row = [f"{name} {incarnation.number}", incarnation.verdict.outcome.value]
        steps = _steps_run(incarnation)
        row += ["?" if steps is None else str(steps), f"{incarnation.seconds:.2f}"]
        for phase in phases:
            spent = [s.timing[phase] for s in incarnation.statuses.values() if phase in s.timing]
            row.append(f"{max(spent):.3f}" if spent else "-")
        accounted = max((sum(s.timing.values()) for s in incarnation.statuses.values()), default=0.0)
        rows.append([*row, f"{max(0.0, incarnation.seconds - accounted):.2f}"])
    columns = ["incarnation", "outcome", "steps run", "wall", *phases, "rest"]
    terminal.table("Where time went (seconds)", columns, rows)


def verdict_line(
    comparison: Comparison, preemptions: Sequence[Preemption], lost_steps: int | None, lost_seconds: float
) -> str:
    """Returns the line that a drill ends with."""
    steps = "unknown steps lost" if lost_steps is None else f"{lost_steps} steps lost"
    loss = f"{steps}, {lost_seconds:.1f} s lost"
    noun = "preemption" if len(preemptions) == 1 else "preemptions"
    where = f"{len(preemptions)} {noun}: {', '.join(str(preemption) for preemption in preemptions)}"
    if comparison.identical:
        return f"VERDICT: identical ({comparison.tensors} tensors and all other state; {where}; {loss})"
    differing = f"{len(comparison.tensor_differences)} of {comparison.tensors} tensors"
    other = f"{len(comparison.state_differences)} places of other state"
    return f"VERDICT: different ({differing}, {other}; {where}; {loss})"


def _steps_run(incarnation: Incarnation) -> int | None:
    counts = [s.steps_run for s in incarnation.statuses.values() if s.steps_run is not None]
    return max(counts, default=None)
