"""The verdict of a drill as an object: the JSON of ``keras-preempt drill --json``, typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from keras_preempt.process.words import counted

_NAMED = 3  # tensors in one line


@dataclass(frozen=True)
class DrillFit:
    """One fit of the script.

    Attributes:
        fit: Its number, from 1.
        directory: As the script names it.
        steps: Training steps of it.
        promised_exact: Whether the log promised "bit-identical" before the first step.
        promised_if: What that depends on and could not be seen, as the end of "exact if ..."; None for nothing.
        promise: What spoke against bit-identical, in words; empty if nothing did.
    """

    fit: int
    directory: str
    steps: int
    promised_exact: bool
    promised_if: str | None
    promise: str


@dataclass(frozen=True)
class DrillPreemption:
    """One preemption of the drill.

    Attributes:
        worker: Which worker got the signal.
        step: Before which training step, counted from 0 over all fits.
        fit: In which fit, from 1.
        moment: "step", "validation", "saving" or "leaving".
        sent: How, such as "SIGTERM from outside".
        killed_after_grace: Whether the worker was killed at the end of its grace period.
    """

    worker: int
    step: int
    fit: int
    moment: str
    sent: str
    killed_after_grace: bool


@dataclass(frozen=True)
class DrillDifference:
    """A tensor that differs.

    Attributes:
        name: Its name.
        what: What differs, in words.
        by_at_most: The greatest difference of two values; None if that means nothing.
    """

    name: str
    what: str
    by_at_most: float | None


@dataclass(frozen=True)
class DrillParting:
    """The first step after which the two runs differ.

    Attributes:
        fit: In which fit, from 1.
        step: The step, as the model of that fit counts them.
        epoch: Its epoch, from 0.
        worker: On which worker.
        restart: After how many preemptions; 0 means that the script does not repeat itself.
        what: What differs: "weights", "optimizer", "metrics", "seeds".
    """

    fit: int
    step: int
    epoch: int
    worker: int
    restart: int
    what: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class DrillVerdict:
    """What a drill has found. `str(verdict)` says it in a few lines.

    Attributes:
        verdict: "identical", "different", or "none" if there is no verdict.
        exit_status: Of the command: 0 identical, 1 different, 3 a run failed, 4 the run has no such moment.
        why_none: Why there is no verdict; None if there is one.
        workers: How many workers there were.
        seed: What moments and workers were drawn with. Passed as `seed`, it repeats the drill.
        steps: Training steps of all fits together; None if that is not known.
        fits: The fits of the script.
        preemptions: What was done to the run.
        steps_lost: Steps that were run and had to be run again; None if that is not known.
        seconds_lost: How much longer the preempted run took; None if that is not known.
        tensors_compared: How many tensors were compared.
        bytes_compared: How many bytes that is.
        tensors_different: Those that differ.
        other_state_different: Other state that differs, in words.
        does_not_decide: Differences that do not count, in words.
        first_different_step: Where the runs part; None if no recorded step differs.
        likely_causes: Why they are likely to differ, in words.
        uncovered: What the verdict does not cover, in words.
        output: The end of what the drill and its workers have printed.
        log: The file with all of it; None if none was asked for.
        kept: Where the checkpoints of both runs are; None if they were not kept.
    """

    verdict: Literal["identical", "different", "none"]
    exit_status: int
    why_none: str | None
    workers: int
    seed: int
    steps: int | None
    fits: tuple[DrillFit, ...]
    preemptions: tuple[DrillPreemption, ...]
    steps_lost: int | None
    seconds_lost: float | None
    tensors_compared: int
    bytes_compared: int
    tensors_different: tuple[DrillDifference, ...]
    other_state_different: tuple[str, ...]
    does_not_decide: tuple[str, ...]
    first_different_step: DrillParting | None
    likely_causes: tuple[str, ...]
    uncovered: tuple[str, ...]
    output: str = field(default="", compare=False)
    log: Path | None = field(default=None, compare=False)
    kept: str | None = field(default=None, compare=False)

    @property
    def identical(self) -> bool:
        """Whether not a single bit differs."""
        return self.verdict == "identical"

    def __repr__(self) -> str:
        log = f"; log: {self.log}" if self.log is not None else ""
        return f"<DrillVerdict {self._gist()}{log}>"

    def __str__(self) -> str:
        lines = [self._gist()]
        lines += [f"likely cause: {cause}" for cause in self.likely_causes]
        lines += [f"not covered: {what}" for what in self.uncovered]
        lines += [f"kept: {self.kept}"] * (self.kept is not None)
        lines += [f"log: {self.log}"] * (self.log is not None)
        if self.verdict == "none":
            lines += ["the end of its output:", self.output]
        return "\n".join(lines)

    def _gist(self) -> str:
        if self.verdict == "none":
            return f"no verdict: {(self.why_none or '').removeprefix('No verdict: ')}"
        moments = ", ".join(f"w{each.worker} at step {each.step}" for each in self.preemptions)
        where = f"preempted: {moments}; {counted(self.steps_lost or 0, 'step')} lost; seed {self.seed}"
        if self.identical:
            return f"identical: {counted(self.tensors_compared, 'tensor')} and all other state; {where}"
        names = [each.name for each in self.tensors_different]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        which = f" ({', '.join(names[:_NAMED])}{more})" if names else ""
        parting = self.first_different_step
        since = "" if parting is None else f", from step {parting.step} of fit {parting.fit} on"
        other = f", {counted(len(self.other_state_different), 'place')} of other state"
        differing = f"{len(names)} of {counted(self.tensors_compared, 'tensor')}{which}{other}"
        return f"different: {differing}{since}; {where}"


_RECORDS: dict[str, type[Any]] = {
    "fits": DrillFit,
    "preemptions": DrillPreemption,
    "tensors_different": DrillDifference,
    "first_different_step": DrillParting,
}


def from_json(document: Mapping[str, Any], output: str, log: Path | None, kept: str | None) -> DrillVerdict:
    """Returns the verdict that the command has printed. Fields of later versions are left out."""
    names = [each.name for each in fields(DrillVerdict) if each.name in document]
    values = {name: _read(document[name], _RECORDS.get(name)) for name in names}
    return DrillVerdict(**values, output=output, log=log, kept=kept)


def _read(value: Any, record: type[Any] | None = None) -> Any:
    if isinstance(value, list):
        return tuple(_read(each, record) for each in value)
    if isinstance(value, dict) and record is not None:
        return record(**{each.name: _read(value[each.name]) for each in fields(record)})
    return value
