"""Reads what the workers of a drill recorded of every step, by fit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from keras_preempt.drilled.places import record_name

Line = Mapping[str, Any]


@dataclass(frozen=True)
class FitRecord:
    """What a worker recorded of one fit in one incarnation. Steps are those of the model."""

    begin: Line  # The line of its beginning.
    lines: Sequence[Line]  # Those after it.
    name: str  # The directory of the fit below that of the drill.
    directory: str  # The directory as the script names it.
    first: int  # The steps that were done when it began.
    last: int  # The last step that it is known to have reached.
    ended: bool
    restored: str  # The checkpoint that it continued from; empty if it started from the beginning.
    doubts: Sequence[str]  # What spoke against an exact continuation, in words.
    validations: Sequence[tuple[int, int]]  # The steps before each, and the number of its last batch.
    boundaries: Sequence[int]  # The steps before which it stood at a boundary.

    @classmethod
    def of(cls, begin: Line, lines: Sequence[Line]) -> FitRecord:
        why = begin["why"]
        if isinstance(why, str):  # As releases up to 0.2 have recorded it.
            why = why.split("; and ") if why else []
        first, validations = int(begin["step"]), dict[int, int]()
        for line in lines:
            if line.get("phase") == "validation":
                validations[line["step"]] = max(line["batch"], validations.get(line["step"], 0))
        return cls(
            begin,
            lines,
            name=str(begin.get("fit", "")),
            directory=str(begin.get("directory", "")),
            first=first,
            last=max((line["step"] for line in lines if line["what"] == "at"), default=first),
            ended=any(line.get("phase") == "end" for line in lines),
            restored=str(begin["restored"]),
            doubts=[str(each) for each in why],
            validations=sorted(validations.items()),
            boundaries=sorted({line["step"] for line in lines if line.get("phase") == "train"}),
        )


@dataclass(frozen=True)
class RunRecord:
    """The lines of one run, by incarnation and then by worker."""

    incarnations: Sequence[Sequence[Sequence[Line]]]

    def fits(self, incarnation: int, member: int = 0) -> list[FitRecord]:
        """The fits of a worker in an incarnation, in order, including those that it only restored."""
        if incarnation >= len(self._fits) or member >= len(self._fits[incarnation]):
            return []
        return self._fits[incarnation][member]

    @cached_property
    def _fits(self) -> list[list[list[FitRecord]]]:
        def split(lines: Sequence[Line]) -> list[FitRecord]:
            found: list[tuple[Line, list[Line]]] = []
            for line in lines:
                if line["what"] == "begin":
                    found.append((line, []))
                elif found:
                    found[-1][1].append(line)
            return [FitRecord.of(begin, of_fit) for begin, of_fit in found]

        return [[split(lines) for lines in workers] for workers in self.incarnations]

    def trained(self) -> list[FitRecord]:
        """The fits of the first worker in the first incarnation; of a repeated one, the last attempt.

        Fits with nothing to train, for instance without an epoch left, are not among them: they leave no checkpoint.
        """
        latest = {fit.name: fit for fit in self.fits(0)}
        return [fit for fit in latest.values() if fit.ended or fit.last > fit.first]

    def all_fits(self) -> list[FitRecord]:
        return [fit for workers in self._fits for fits in workers for fit in fits]

    def names(self) -> list[str]:
        """The names of all fits, in the order in which they first began."""
        return list(dict.fromkeys(fit.name for fit in self.all_fits()))

    def stretch(self, incarnation: int, name: str) -> range | None:
        """The steps that an incarnation ran of a fit, by the worker that came furthest; None if it has no such fit."""
        workers = self._fits[incarnation] if incarnation < len(self._fits) else []
        found = [fit for fits in workers for fit in fits if fit.name == name]
        return range(min(fit.first for fit in found), max(fit.last for fit in found)) if found else None

    def steps_run(self, incarnation: int) -> int:
        return sum(len(self.stretch(incarnation, name) or ()) for name in self.names())

    def steps_run_again(self) -> int:
        """How many steps were run again by a later incarnation."""
        count = 0
        for name in self.names():
            stretches = [self.stretch(number, name) or () for number in range(len(self.incarnations))]
            count += sum(map(len, stretches)) - len(set().union(*stretches))
        return count

    def where(self, incarnation: int) -> FitRecord | None:
        """The fit that an incarnation continued: the first that was not finished yet."""
        fits = self.fits(incarnation)
        trained = [fit for fit in fits if any(line["what"] == "at" for line in fit.lines)]
        return next(iter(trained), fits[-1] if fits else None)

    @property
    def input_doubts(self) -> list[str]:
        """Why the input or a step is known not to continue exactly, in words."""
        return _distinct(doubt for fit in self.trained() if not fit.begin["exact"] for doubt in fit.doubts)

    @property
    def conditions(self) -> list[str]:
        """What an exact continuation of a fit depends on, and cannot be seen."""
        return _distinct(filter(None, (fit.begin.get("condition") for fit in self.trained())))

    @property
    def shared(self) -> list[str]:
        """What the training data shares with other data of its fit."""
        return _distinct(what for fit in self.fits(0) for what in fit.begin.get("shared", ()))

    @property
    def unsaved_callbacks(self) -> list[str]:
        """Callbacks whose state is not kept over a restart."""
        return _distinct(name for fit in self.fits(0) for name in fit.begin.get("unsaved", ()))

    @property
    def missed(self) -> list[str]:
        """Callbacks in which an error ended a fit after a restart over which their state was not kept."""
        return _distinct(self._of_lines("missed", "callbacks"))

    @property
    def hidden_sources(self) -> list[str]:
        """What uses state that no checkpoint holds, as far as TensorFlow shows it."""
        return sorted(_distinct(self._of_lines("sources", "found")))

    def _of_lines(self, kind: str, key: str) -> Iterable[object]:
        lines = (line for fit in self.all_fits() for line in fit.lines if line["what"] == kind)
        return (each for line in lines for each in line[key])

    def files(self, name: str) -> list[dict[str, str]]:
        """For each worker, the files whose content is part of the state of a fit, by their names there."""
        found = []
        for member in range(len(self.incarnations[0]) if self.incarnations else 0):
            named = [fit.begin.get("files", {}) for fit in self.fits(0, member) if fit.name == name]
            found.append(dict(named[0]) if named else {})
        return found


def _distinct(values: Iterable[object]) -> list[str]:
    return list(dict.fromkeys(map(str, values)))


def read_run_record(folder: Path, incarnations: int, members: int) -> RunRecord:
    """Reads the record of a run, without lines that a killed worker left half-written."""

    def read(path: Path) -> list[Line]:
        lines: list[Line] = []
        for text in path.read_bytes().splitlines() if path.is_file() else ():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict) and "what" in line:
                lines.append(line)
        return lines

    return RunRecord(
        [
            [read(folder / record_name(incarnation, member)) for member in range(members)]
            for incarnation in range(incarnations)
        ]
    )
