"""Reads what the workers of a drill recorded of every step, and finds where two runs part. Pure but for reading."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_preempt.step_record import record_name

__all__ = ["Parting", "RunRecord", "find_parting", "read_run_record"]

_Line = Mapping[str, Any]


@dataclass(frozen=True)
class RunRecord:
    """The lines of one run, by incarnation and then by worker."""

    incarnations: Sequence[Sequence[Sequence[_Line]]]

    def _lines(self, incarnation: int, member: int = 0) -> Sequence[_Line]:
        if incarnation >= len(self.incarnations):
            return ()
        workers = self.incarnations[incarnation]
        return workers[member] if member < len(workers) else ()

    @property
    def fits(self) -> int:
        """The greatest number of fits under a PreemptionCallback in one process."""
        return max(
            (
                sum(line["what"] == "begin" for line in worker)
                for workers in self.incarnations
                for worker in workers
            ),
            default=0,
        )

    @property
    def validations(self) -> list[tuple[int, int]]:
        """For each validation of the first incarnation, the steps before it and the number of its last batch."""
        found: dict[int, int] = {}
        for line in self._lines(0):
            if line.get("phase") == "validation":
                found[line["step"]] = max(line["batch"], found.get(line["step"], 0))
        return sorted(found.items())

    def began_at(self, incarnation: int) -> int | None:
        """The steps done when an incarnation began; None if it did not come so far."""
        steps = [line["step"] for line in self._lines(incarnation) if line["what"] == "begin"]
        return steps[0] if steps else None

    def restored(self, incarnation: int) -> str:
        """The checkpoint from which an incarnation went on; empty if it began anew."""
        names = [str(line["restored"]) for line in self._lines(incarnation) if line["what"] == "begin"]
        return names[0] if names else ""

    def steps_run(self, incarnation: int) -> int | None:
        """The steps that an incarnation is known to have run: those of its worker that came furthest."""
        if incarnation >= len(self.incarnations):
            return None
        counts = []
        for lines in self.incarnations[incarnation]:
            began = [line["step"] for line in lines if line["what"] == "begin"]
            steps = [line["step"] for line in lines if line["what"] == "at"]
            if began and steps:
                counts.append(max(steps) - began[0])
        return max(counts, default=None)

    @property
    def input_doubt(self) -> str | None:
        """Why the input is known not to continue exactly, in words; None if it is not known."""
        doubts = [line["why"] for line in self._lines(0) if line["what"] == "begin" and not line["exact"]]
        return str(doubts[0]) if doubts else None

    @property
    def unsaved_callbacks(self) -> list[str]:
        """Callbacks whose state is not kept over a restart."""
        found = [line.get("unsaved", []) for line in self._lines(0) if line["what"] == "begin"]
        return [str(name) for name in found[0]] if found else []

    @property
    def hidden_sources(self) -> list[str]:
        """What draws from a state that no checkpoint holds, as far as TensorFlow shows it."""
        found = {
            str(source)
            for workers in self.incarnations
            for worker in workers
            for line in worker
            if line["what"] == "sources"
            for source in line["found"]
        }
        return sorted(found)


@dataclass(frozen=True)
class Parting:
    """Where the second run is seen to differ from the first one for the first time.

    Attributes:
        member: The worker that shows it.
        incarnation: Of the second run.
        step: After how many training steps.
        epoch: In which epoch, from 0.
        began_at: The step at which that incarnation began.
        equal_until: The last step of it, after its beginning, that is known to be equal; None if there is none.
        groups: What differs: weights, optimizer, metrics, random seeds, other state.
        logs: Logs that differ, by name: of the first and of the second run.
    """

    member: int
    incarnation: int
    step: int
    epoch: int
    began_at: int
    equal_until: int | None
    groups: tuple[str, ...]
    logs: Mapping[str, tuple[float, float]]


def read_run_record(folder: Path, incarnations: int, members: int) -> RunRecord:
    """Reads the record of a run; what a killed worker has left half-written is passed over."""
    return RunRecord(
        [
            [_read(folder / record_name(incarnation, member)) for member in range(members)]
            for incarnation in range(incarnations)
        ]
    )


def find_parting(first: RunRecord, second: RunRecord) -> Parting | None:
    """Compares two runs step by step; None if no recorded step differs.

    Args:
        first: Of one incarnation.
        second: Of any number.
    """
    for incarnation, workers in enumerate(second.incarnations):
        found = [
            parting
            for member, lines in enumerate(workers)
            if (parting := _first_difference(first, lines, incarnation, member)) is not None
        ]
        if found:
            return min(found, key=lambda parting: (parting.step, parting.member))
    return None


def _first_difference(
    first: RunRecord, lines: Sequence[_Line], incarnation: int, member: int
) -> Parting | None:
    expected = {_key(line): line for line in first._lines(0, member) if "digests" in line}
    began_at, equal_until = 0, None
    for line in lines:
        if line["what"] == "begin":
            began_at = line["step"]
        known = expected.get(_key(line)) if "digests" in line else None
        if known is None:
            continue
        groups = known["digests"].keys() | line["digests"].keys()
        different = sorted(
            group for group in groups if known["digests"].get(group) != line["digests"].get(group)
        )
        if different:
            logs = {
                name: (value, line["logs"][name])
                for name, value in known["logs"].items()
                if name in line["logs"] and repr(value) != repr(line["logs"][name])
            }
            where = (line["step"], line["epoch"], began_at, equal_until)
            return Parting(member, incarnation, *where, tuple(different), logs)
        equal_until = line["step"]
    return None


def _key(line: _Line) -> tuple[Any, Any]:
    return (line.get("phase"), line.get("step"))


def _read(path: Path) -> list[_Line]:
    try:
        data = path.read_bytes()
    except OSError:
        return []
    lines: list[_Line] = []
    for text in data.splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and "what" in line:
            lines.append(line)
    return lines
