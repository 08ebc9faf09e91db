"""Reads what the workers of a drill recorded of every step, by fit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from keras_preempt.drilled.places import record_name

Line = Mapping[str, Any]


@dataclass(frozen=True)
class FitRecord:
    """What a worker recorded of one fit in one incarnation: the line of its beginning, and the lines after it."""

    begin: Line
    lines: Sequence[Line]

    @property
    def name(self) -> str:
        """The directory of the fit below that of the drill."""
        return str(self.begin.get("fit", ""))

    @property
    def doubts(self) -> list[str]:
        """What spoke against an exact continuation, in words."""
        why = self.begin["why"]
        if isinstance(why, str):  # As releases up to 0.2 have recorded it.
            return why.split("; and ") if why else []
        return [str(each) for each in why]

    @property
    def directory(self) -> str:
        """The directory as the script names it."""
        return str(self.begin.get("directory", ""))

    @property
    def first(self) -> int:
        """The steps of the model that were done when it began."""
        return int(self.begin["step"])

    @cached_property
    def last(self) -> int:
        """The last step of the model that it is known to have reached."""
        return max((line["step"] for line in self.lines if line["what"] == "at"), default=self.first)

    @property
    def ended(self) -> bool:
        """Whether it finished."""
        return any(line.get("phase") == "end" for line in self.lines)

    @property
    def restored(self) -> str:
        """The checkpoint that it continued from; empty if it started from the beginning."""
        return str(self.begin["restored"])

    @cached_property
    def validations(self) -> list[tuple[int, int]]:
        """For each validation the steps of the model before it, and the number of its last batch."""
        found: dict[int, int] = {}
        for line in self.lines:
            if line.get("phase") == "validation":
                found[line["step"]] = max(line["batch"], found.get(line["step"], 0))
        return sorted(found.items())

    @cached_property
    def boundaries(self) -> list[int]:
        """The steps of the model before which it stood at a boundary."""
        return sorted({line["step"] for line in self.lines if line.get("phase") == "train"})


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
        return [[_split(lines) for lines in workers] for workers in self.incarnations]

    def trained(self) -> list[FitRecord]:
        """The fits of the first worker in the first incarnation; of a repeated one, the last attempt.

        Fits with nothing to train, for instance without an epoch left, are not among them: they leave no checkpoint.
        """
        latest = {fit.name: fit for fit in self.fits(0)}
        return [fit for fit in latest.values() if fit.ended or fit.last > fit.first]

    def all_fits(self) -> list[FitRecord]:
        """The fits of all workers in all incarnations."""
        return [fit for workers in self._fits for fits in workers for fit in fits]

    def stretch(self, incarnation: int, name: str) -> tuple[int, int] | None:
        """The first and last step of the model in an incarnation of a fit; None if it has not run it.

        The worker that came furthest counts.
        """
        found = [fit for fits in self._fits[incarnation] for fit in fits if fit.name == name]
        if not found:
            return None
        return min(fit.first for fit in found), max(fit.last for fit in found)

    def names(self) -> list[str]:
        """The names of all fits, in the order in which they first began."""
        return list(dict.fromkeys(fit.name for fit in self.all_fits()))

    def steps_run(self, incarnation: int) -> int:
        """How many steps an incarnation is known to have run."""
        if incarnation >= len(self.incarnations):
            return 0
        stretches = (self.stretch(incarnation, name) for name in self.names())
        return sum(stretch[1] - stretch[0] for stretch in stretches if stretch is not None)

    def steps_run_again(self) -> int:
        """How many steps were run again by a later incarnation."""
        count = 0
        for name in self.names():
            done: set[int] = set()
            for incarnation in range(len(self.incarnations)):
                stretch = self.stretch(incarnation, name)
                if stretch is not None:
                    steps = range(*stretch)
                    count += sum(step in done for step in steps)
                    done.update(steps)
        return count

    def where(self, incarnation: int) -> FitRecord | None:
        """The fit that an incarnation continued: the first that was not finished yet."""
        fits = self.fits(incarnation)
        trained = [fit for fit in fits if any(line["what"] == "at" for line in fit.lines)]
        return trained[0] if trained else (fits[-1] if fits else None)

    def began_at(self, incarnation: int) -> int | None:
        """The steps of the model where an incarnation continued; None if it did not get there."""
        fit = self.where(incarnation)
        return None if fit is None else fit.first

    @property
    def promises(self) -> list[tuple[str, bool, str, str]]:
        """For each fit its directory, whether nothing spoke against exact, under which condition, and why not."""
        return [
            (
                fit.directory,
                bool(fit.begin["exact"]),
                str(fit.begin.get("condition", "")),
                "; and ".join(fit.doubts),
            )
            for fit in self.trained()
        ]

    @property
    def input_doubts(self) -> list[str]:
        """Why the input or a step is known not to continue exactly, in words."""
        inexact = [fit for fit in self.trained() if not fit.begin["exact"]]
        return list(dict.fromkeys(doubt for fit in inexact for doubt in fit.doubts))

    @property
    def conditions(self) -> list[str]:
        """What an exact continuation of a fit depends on, and cannot be seen."""
        return list(dict.fromkeys(condition for _, _, condition, _ in self.promises if condition))

    @property
    def shared(self) -> list[str]:
        """What the training data shares with other data of its fit."""
        return list(dict.fromkeys(str(what) for fit in self.fits(0) for what in fit.begin.get("shared", ())))

    @property
    def unsaved_callbacks(self) -> list[str]:
        """Callbacks whose state is not kept over a restart."""
        return list(dict.fromkeys(str(name) for fit in self.fits(0) for name in fit.begin.get("unsaved", ())))

    @property
    def missed(self) -> list[str]:
        """Callbacks in which an error ended a fit after a restart over which their state was not kept."""
        return list(
            dict.fromkeys(
                str(what)
                for fit in self.all_fits()
                for line in fit.lines
                if line["what"] == "missed"
                for what in line["callbacks"]
            )
        )

    @property
    def hidden_sources(self) -> list[str]:
        """What uses state that no checkpoint holds, as far as TensorFlow shows it."""
        found = {
            str(source)
            for fit in self.all_fits()
            for line in fit.lines
            if line["what"] == "sources"
            for source in line["found"]
        }
        return sorted(found)

    def files(self, name: str) -> list[dict[str, str]]:
        """For each worker, the files whose content is part of the state of a fit, by their names there."""
        found = []
        for member in range(len(self.incarnations[0]) if self.incarnations else 0):
            named = [fit.begin.get("files", {}) for fit in self.fits(0, member) if fit.name == name]
            found.append(dict(named[0]) if named else {})
        return found


def read_run_record(folder: Path, incarnations: int, members: int) -> RunRecord:
    """Reads the record of a run, without lines that a killed worker left half-written."""
    return RunRecord(
        [
            [_read(folder / record_name(incarnation, member)) for member in range(members)]
            for incarnation in range(incarnations)
        ]
    )


def _split(lines: Sequence[Line]) -> list[FitRecord]:
    found: list[tuple[Line, list[Line]]] = []
    for line in lines:
        if line["what"] == "begin":
            found.append((line, []))
        elif found:
            found[-1][1].append(line)
    return [FitRecord(begin, of_it) for begin, of_it in found]


def _read(path: Path) -> list[Line]:
    try:
        data = path.read_bytes()
    except OSError:
        return []
    lines: list[Line] = []
    for text in data.splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and "what" in line:
            lines.append(line)
    return lines
