"""One event as a value, the schema of all kinds of events, and the fields of events that were read from a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from keras_preempt.checkpoint.errors import one_line
from keras_preempt.checkpoint.layout import step_of
from keras_preempt.process.json_fields import integer, number


@dataclass(frozen=True)
class Event:
    """Something that happened in training, on one worker.

    Attributes:
        kind: What, such as "commit"; docs/events.md lists all kinds.
        time: When, in seconds since 1970.
        worker: The number of the worker, from 0.
        start: The number of this start of the job, from 1. None before the workers have agreed on it, and in custom
            loops, whose starts are not counted.
        fields: What the kind says beside that: plain data, read-only. docs/events.md lists all of them.

    Example:
        >>> event = Event("commit", 1763800000.0, 0, 1, {"step": 70, "seconds": 0.2})
        >>> event.fields["seconds"]
        0.2
    """

    kind: str
    time: float
    worker: int
    start: int | None
    fields: Mapping[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", MappingProxyType(dict(self.fields)))

    def __repr__(self) -> str:
        return f"Event({self.kind!r}, {self.time!r}, {self.worker!r}, {self.start!r}, {dict(self.fields)!r})"

    @property
    def step(self) -> int | None:
        """How many training steps it is about: done, saved or restored; None where it does not say."""
        if isinstance(step := self.fields.get("step"), int):
            return step
        checkpoint = self.fields.get("checkpoint") or self.fields.get("saved")
        return step_of(checkpoint) if isinstance(checkpoint, str) else None

    def to_json(self) -> dict[str, Any]:
        """Returns it as a dictionary of plain data, such as `json.dumps` takes."""
        return {
            "event": self.kind,
            "time": self.time,
            "worker": self.worker,
            "start": self.start,
            **self.fields,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return Event, (self.kind, self.time, self.worker, self.start, dict(self.fields))


@dataclass(frozen=True)
class Field:
    """A field of an event: its type in Python's notation, and whether each event of the kind has it."""

    type: str
    meaning: str
    always: bool = True


@dataclass(frozen=True)
class EventKind:
    """A kind of events; `loops`: custom loops report it too."""

    when: str
    fields: Mapping[str, Field]
    loops: bool = False


_STEP = Field("int", "training steps done")
_STEP_OR_NONE = Field("int | None", "training steps done")
_SECONDS = Field("float", "how long it took, in seconds")
_ATTEMPT = Field("str", "names the checkpoint; in a custom loop, what TensorFlow calls it")
_BEGAN = Field("float | None", "when training stopped for it, in seconds since 1970")
_READY = Field("float | None", "when everything was in host memory")
_BACKGROUND = Field("bool", "whether training went on then")
_BOUNDARY = Field("int", "boundaries that the fit has passed")
_SOURCE = Field("str", 'who said it: "signal", "gce", ...; "interrupt" for Ctrl-C')
_REASON = Field("str", "why, in words")

ANY: Mapping[str, Field] = {
    "passed": Field(
        "list",
        "when epochs and validations have begun since the event before: time, training steps done",
        False,
    ),
}
"""What every event may say."""

SCHEMA: Mapping[str, EventKind] = {
    "start": EventKind(
        "the workers have begun together",
        {
            "incarnation": Field("int", "the number of this start"),
            "members": Field("int", "how many workers there are"),
            "process": Field("dict", "names the process: machine, pid, ticks"),
            "started_at": Field("float", "when the process was started, in seconds since 1970"),
            "began_at": Field("float", "when `fit` began"),
            "read_at": Field("float | None", "when a checkpoint was read; None if there was none"),
            "read_seconds": Field("float", "how long that took"),
            "versions": Field("dict", "of Python, this package, Keras and its backend, by name"),
        },
    ),
    "restore": EventKind(
        "a checkpoint was restored",
        {
            "checkpoint": Field("str", "its folder"),
            "seconds": _SECONDS,
            "input_seconds": Field("float", "of these, to bring the input to its position"),
            "skipped": Field("list", "newer checkpoints that could not be used, and why"),
            "substituted_from": Field("int | None", "the worker whose own part stands in for a missing one"),
            "input": Field("str", "how the input was brought to its position"),
            "saved_by": Field("int", "how many workers had saved it"),
            "exchanged": Field("bool", "whether the workers have read it together, each its share"),
            "memory_age": Field(
                "float | None", "how many seconds ago it was saved in memory; None if it was in the directory"
            ),
            "regrouped": Field("str | None", "what another number of workers has changed"),
        },
    ),
    "ready": EventKind(
        "the fit is prepared: the first step is next",
        {
            "epoch": Field("int", "zero-based epoch"),
            "step": _STEP_OR_NONE,
            "epochs": Field("int", "as `fit` was asked"),
            "ahead": Field(
                "int | None",
                "how many steps can be done after the newest one that an event names; None unless `save_every` is a "
                "number of steps",
            ),
        },
    ),
    "first_step": EventKind("the first step is done", {"step": _STEP_OR_NONE, "seconds": _SECONDS}),
    "notice": EventKind(
        "a notice has come, or Ctrl-C",
        {
            "source": _SOURCE,
            "reason": _REASON,
            "received_at": Field("float", "when, in seconds since 1970"),
            "deadline": Field("float | None", "when the machine goes, if the source says so"),
            "boundary": _BOUNDARY,
        },
        loops=True,
    ),
    "withdrawn": EventKind(
        "a source has withdrawn its notice",
        {"source": _SOURCE, "reason": _REASON, "boundary": _BOUNDARY},
        loops=True,
    ),
    "plan": EventKind(
        "the workers have agreed on where to act",
        {
            "target": Field("int", "at which boundary"),
            "reason": Field("str", "preempted, periodic, requested, interrupted, deadline or finished"),
            "writers": Field("list", "the workers that write the weights"),
            "doomed": Field("list", "the workers under notice"),
            "goes_on": Field("bool", "whether training goes on after the save"),
        },
        loops=True,
    ),
    "hold": EventKind(
        "this worker has reached that boundary",
        {
            "boundary": _BOUNDARY,
            "seconds": Field("float", "how long it waited there"),
            "before": Field("float", "how long it waited at boundaries before that"),
            "goes_on": Field("bool", "whether training goes on after the save"),
            "epoch": Field("int", "zero-based epoch"),
            "phase": Field("str", "train, validation, epoch or end"),
            "batch": Field("int", "the batch that is next"),
            "step": _STEP_OR_NONE,
        },
        loops=True,
    ),
    "save": EventKind(
        "this worker's part of a checkpoint is written",
        {
            "attempt": _ATTEMPT,
            "step": _STEP,
            "seconds": _SECONDS,
            "began_at": _BEGAN,
            "ready_at": _READY,
            "background": _BACKGROUND,
        },
    ),
    "commit": EventKind(
        "a checkpoint is committed",
        {
            "attempt": _ATTEMPT,
            "step": _STEP,
            "seconds": Field("float", "from this worker's part to the commit, in seconds"),
            "missing": Field("list", "the workers whose own part is missing"),
        },
        loops=True,
    ),
    "abort": EventKind("the workers could not agree", {"reason": _REASON}, loops=True),
    "requested": EventKind(
        "worker 0 has received a `keras-preempt save`",
        {
            "id": Field("str", "names the request"),
            "asked_at": Field("float", "when it was made, by the clock of who made it"),
        },
    ),
    "answered": EventKind(
        "that request has its answer",
        {
            "id": Field("str", "names the request"),
            "checkpoint": Field("str | None", "what was saved; None if nothing was"),
            "reason": Field("str", "why nothing was; else empty"),
        },
    ),
    "finish": EventKind("training is over and saved", {"step": _STEP_OR_NONE}),
    "exit": EventKind(
        "this process leaves early",
        {
            "code": Field("int", "its exit status; 130 after Ctrl-C"),
            "saved": Field("str | None", "what it has saved; None if nothing"),
        },
        loops=True,
    ),
    "end": EventKind(
        "the fit, or the loop, is over in this process",
        {"reason": _REASON, "step": Field("int | None", "training steps done, where that is known")},
        loops=True,
    ),
    "error": EventKind(
        "training has failed, or a save, or the agreement",
        {
            "reason": _REASON,
            "origin": Field(
                "str | None", "of an error that ends training: this worker, another one, a loss", False
            ),
            "attempt": Field("str", "of a save: names the checkpoint", False),
            "step": Field("int", "of a save: training steps done", False),
            "began_at": replace(_BEGAN, always=False),
            "ready_at": replace(_READY, always=False),
            "background": replace(_BACKGROUND, always=False),
        },
        loops=True,
    ),
}
"""What events there are. The logs also have "gone" and "hang", which the launcher writes of a process that has ended.

A hang has the name of its `phase`, the training `step`, and the `seconds` without progress until then.
"""


Record = Mapping[str, Any]
"""An event as a log has it. Anybody may have written it, so the functions below return a valid value or None."""

LATEST = 253402300799.0
"""Unix seconds: the end of the year 9999, and long enough for any duration."""


def seconds(record: Record, name: str) -> float | None:
    """A time since 1970, or how long something took."""
    return number(record.get(name), 0.0, LATEST)


def whole(record: Record, name: str) -> int | None:
    """A number of steps, workers and the like."""
    return integer(record.get(name))


def words(record: Record, name: str) -> str | None:
    """A text, on one line and not too long."""
    value = record.get(name)
    return one_line(value) if isinstance(value, str) else None


def process_began(log: Sequence[Record]) -> float:
    """Returns when the process of these events was started, as far as they say; there is at least one event."""
    times: list[float] = [record["time"] for record in log]
    starts = [seconds(record, "started_at") for record in log if record["event"] == "start"]
    return min([*times, *(start for start in starts if start is not None)])
