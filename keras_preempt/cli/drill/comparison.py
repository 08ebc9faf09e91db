"""Compares two runs of a drill, fit by fit: their final states, and the steps that they recorded."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.finding import newest_first
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.cli.compare import Comparison, SavedState, combined, compare_states
from keras_preempt.cli.drill.judge import NoVerdict
from keras_preempt.cli.drill.runs import DrillRun
from keras_preempt.cli.drill.step_records import FitRecord, Line, RunRecord
from keras_preempt.process.words import counted, numbered

Explain = Callable[[int, str, bytes, bytes], "str | None"]
"""Given a worker, the name of a tensor of its own, and the bytes of both runs: says in words why a difference does not
decide, or None if it does."""


def compared(one: DrillRun, other: DrillRun, workers: int, *, training_only: bool = False) -> Comparison:
    """Compares the end of each fit of the undisturbed run with the end of the same fit in the other one.

    `training_only` leaves out what log files hold. Raises NoVerdict if a fit has not come to its end.
    """
    fits = {fit.name: fit.directory for fit in one.record.trained()}
    left: dict[str, bytes] | None = None
    if not training_only:  # What the log files held when the last fit that writes them had ended, by path.
        left = {}
        for name in fits:
            files = one.record.files(name)
            tensors = read_final_state(one.place(name), workers).tensors if any(files) else {}
            for member, named in enumerate(files):
                rows = {path: tensors.get(f"w{member}: {key}") for key, path in named.items()}
                left.update((path, value.tobytes()) for path, value in rows.items() if value is not None)
    found = []
    for number, (name, directory) in enumerate(fits.items(), start=1):
        comparison = compare_states(
            read_final_state(one.place(name), workers),
            read_final_state(other.place(name), workers),
            explained_rows(one.record.files(name), left),
        )
        found.append((f"fit {number} ({directory}): " if len(fits) > 1 else "", comparison))
    return combined(found)


def repeats(one: DrillRun, again: DrillRun, workers: int) -> bool:
    """Whether a second undisturbed run has trained as the first one did; what both left in files does not count."""
    same_end = compared(one, again, workers, training_only=True).identical
    return same_end and find_parting(one.record, again.record) is None


def read_final_state(directory: str | os.PathLike[str], members: int) -> SavedState:
    """Reads and verifies the checkpoint furthest in the training, which has to be that of its end; else NoVerdict."""
    with contextlib.closing(open_store(directory)) as store:
        try:
            newest = next(newest_first(store), None)
            if newest is None:
                raise NoVerdict(
                    f"Expected a committed checkpoint in {directory}. Received: none. "
                    "Pass a keras_preempt.PreemptionCallback to fit."
                )
            saved = SavedState.read(store, newest)
        except CheckpointError as error:
            raise NoVerdict(f"The final checkpoint in {directory} cannot be read: {error}") from error
    manifest = newest.manifest
    assert manifest is not None  # It could be read.
    if not manifest.finished or manifest.members != members or manifest.missing:
        without = numbered("worker", manifest.missing)
        raise NoVerdict(
            f"Expected a checkpoint of the end of training by {counted(members, 'worker')}, each with its own part. "
            f"Received: one of step {manifest.step} by {counted(manifest.members, 'worker')}"
            f"{'' if manifest.finished else ', before the end of training'}"
            f"{f', without the part of {without}' if manifest.missing else ''}. "
            "Train to the end in one fit with a PreemptionCallback."
        )
    saved_at = {"step": manifest.step, "position": manifest.position}
    state = {worker: {"saved_at": saved_at, **own} for worker, own in saved.state.items()}
    return SavedState(saved.tensors, state)


def explained_rows(files: Sequence[Mapping[str, str]], left: Mapping[str, bytes] | None) -> Explain:
    """Returns what says why the rows of a `CSVLogger` are expected to differ, or None where they are not.

    `files` are each worker's, by the names of their rows in the state; `left` is what the first run has left in each.
    None sets all rows aside: they show what earlier runs have left, not how this one has trained.
    """
    paths = [path for worker in files for path in worker.values()]

    def explain(member: int, name: str, one: bytes, other: bytes) -> str | None:
        path = files[member].get(name) if member < len(files) else None
        if path is None:
            return None
        if left is None:
            return "what earlier runs have left"
        if paths.count(path) > 1:
            return f"several workers write their rows into {path}, as they come"
        before = left.get(path, b"")
        if before and other.startswith(before) and one.endswith(other[len(before) :]):
            return f"the same rows again, after those that the first run had left in {path}"
        return None

    return explain


@dataclass(frozen=True)
class Parting:
    """Where the second run first differs from the first one."""

    member: int  # The worker whose record shows it.
    incarnation: int  # Of the second run.
    step: int  # How many training steps of the model were done.
    epoch: int  # From 0.
    began_at: int  # The step at which the fit began in that incarnation.
    equal_until: int | None  # The last step of that fit that is known to be equal.
    groups: tuple[str, ...]  # Such as "weights" or "optimizer".
    logs: Mapping[str, tuple[float, float]]  # The values of both runs, by name.
    fit: int = 1  # Its number in the script, from 1.
    fits: int = 1
    continued: bool = True  # The fit continued from a checkpoint in that incarnation.


def find_parting(first: RunRecord, second: RunRecord) -> Parting | None:
    """Compares a run of one incarnation with one of any number, step by step; None if no recorded step differs."""
    names = [fit.name for fit in first.trained()]
    for incarnation, workers in enumerate(second.incarnations):
        found = [
            parting
            for member in range(len(workers))
            for fit in second.fits(incarnation, member)
            if fit.name in names
            and (parting := _first_difference(first, names, fit, incarnation, member)) is not None
        ]
        if found:
            return min(found, key=lambda parting: (parting.fit, parting.step, parting.member))
    return None


def _first_difference(
    first: RunRecord, names: list[str], fit: FitRecord, incarnation: int, member: int
) -> Parting | None:
    expected = {
        _key(line): line
        for known in first.fits(0, member)
        if known.name == fit.name
        for line in known.lines
        if "digests" in line
    }
    equal_until = None
    for line in fit.lines:
        known_line = expected.get(_key(line)) if "digests" in line else None
        if known_line is None:
            continue
        groups = known_line["digests"].keys() | line["digests"].keys()
        different = sorted(
            group for group in groups if known_line["digests"].get(group) != line["digests"].get(group)
        )
        if different:
            logs = {
                name: (value, line["logs"][name])
                for name, value in known_line["logs"].items()
                if name in line["logs"] and repr(value) != repr(line["logs"][name])
            }
            where = (line["step"], line["epoch"], fit.first, equal_until)
            number = names.index(fit.name) + 1
            return Parting(
                member, incarnation, *where, tuple(different), logs, number, len(names), bool(fit.restored)
            )
        equal_until = line["step"]
    return None


def _key(line: Line) -> tuple[Any, ...]:
    # An epoch may begin with a boundary of its own, at the step at which the one before has ended.
    # Several batches may have one number in a record of an earlier release, which has the count of the optimizer.
    return tuple(line.get(name) for name in ("phase", "epoch", "step", "batch"))
