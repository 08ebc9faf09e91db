"""Finds where two recorded runs part: the first step at which training was not the same. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keras_preempt.cli.drill.step_records import FitRecord, Line, RunRecord

__all__ = ["Parting", "find_parting"]


@dataclass(frozen=True)
class Parting:
    """Where the second run is seen to differ from the first one for the first time.

    Attributes:
        member: The worker that shows it.
        incarnation: Of the second run.
        step: After how many training steps of the model.
        epoch: In which epoch, from 0.
        began_at: The step at which the fit began in that incarnation.
        equal_until: The last step of it, after its beginning, that is known to be equal; None if there is none.
        groups: What differs: weights, optimizer, metrics, random seeds, other state.
        logs: Logs that differ, by name: of the first and of the second run.
        fit: Which fit of the script, from 1.
        fits: How many the script has.
        continued: Whether the fit went on in that incarnation from what an earlier one had saved or begun.
    """

    member: int
    incarnation: int
    step: int
    epoch: int
    began_at: int
    equal_until: int | None
    groups: tuple[str, ...]
    logs: Mapping[str, tuple[float, float]]
    fit: int = 1
    fits: int = 1
    continued: bool = True


def find_parting(first: RunRecord, second: RunRecord) -> Parting | None:
    """Compares two runs step by step, each fit with itself; None if no recorded step differs.

    Args:
        first: Of one incarnation.
        second: Of any number.
    """
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


def _key(line: Line) -> tuple[Any, Any]:
    return (line.get("phase"), line.get("step"))
