"""Compares what two runs of a drill ended with, fit by fit."""

from __future__ import annotations

from collections.abc import Iterable

from keras_preempt.cli.compare import Comparison, combined, compare_states
from keras_preempt.cli.drill.final_state import NoFinalState, read_final_state
from keras_preempt.cli.drill.judge import NoVerdict
from keras_preempt.cli.drill.log_rows import any_rows, explained_rows
from keras_preempt.cli.drill.parting import find_parting
from keras_preempt.cli.drill.runs import DrillRun

__all__ = ["compared", "repeats"]


def compared(one: DrillRun, other: DrillRun, workers: int, *, training_only: bool = False) -> Comparison:
    """Compares the end of each fit of the first run with that of the same fit in the other one.

    Args:
        one: The undisturbed run.
        other: The preempted one, or a second undisturbed one.
        workers: How many processes trained.
        training_only: Whether what log files hold is of no interest.

    Raises:
        NoVerdict: A fit has not come to its end.
    """
    fits = {fit.name: fit.directory for fit in one.record.trained()}
    found = []
    left = {} if training_only else _left_in_files(one, fits, workers)
    for number, (name, directory) in enumerate(fits.items(), start=1):
        files = one.record.files(name)
        try:
            comparison = compare_states(
                read_final_state(one.place(name), workers),
                read_final_state(other.place(name), workers),
                any_rows(files) if training_only else explained_rows(files, left),
            )
        except NoFinalState as error:
            raise NoVerdict(str(error)) from None
        found.append((f"fit {number} ({directory}): " if len(fits) > 1 else "", comparison))
    return combined(found)


def _left_in_files(run: DrillRun, fits: Iterable[str], workers: int) -> dict[str, bytes]:
    """What the log files of a run held when its last fit that writes them had ended, by path."""
    left: dict[str, bytes] = {}
    for name in fits:
        files = run.record.files(name)
        if not any(files):
            continue
        try:
            states = read_final_state(run.place(name), workers)
        except NoFinalState as error:
            raise NoVerdict(str(error)) from None
        for state, named in zip(states, files, strict=False):
            left.update(
                (path, state.local[key].tobytes()) for key, path in named.items() if key in state.local
            )
    return left


def repeats(one: DrillRun, again: DrillRun, workers: int) -> bool:
    """Whether a second undisturbed run has trained as the first one has; what both left in files does not count."""
    same_end = compared(one, again, workers, training_only=True).identical
    return same_end and find_parting(one.record, again.record) is None
