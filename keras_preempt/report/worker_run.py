"""One worker in one start of the job: what its main thread did when, how far it came, how it ended. Pure.

A worker does one thing at a time, and its events say when it turned to the next, so that its time falls into spans
without gaps. Where the event that should have come before is missing, the time up to the next one is `UNACCOUNTED`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from keras_preempt.checkpoint.errors import one_line
from keras_preempt.checkpoint.layout import step_of
from keras_preempt.process.exit_codes import EXIT_INTERRUPTED, signal_name
from keras_preempt.process.json_fields import integer
from keras_preempt.report.event import Record, process_began, seconds, whole, words
from keras_preempt.report.throughput import Sample, samples

START_UP = "start-up"
RESTORE = "restore"
REPLAY = "replay"
COMPILE = "compile"
TRAIN = "train"
RECOMPUTED = "recomputed"
HOLD = "hold"
SAVE = "save"
HANG = "hang"
LEAVE = "leave"
IDLE = "idle"
UNREPORTED = "unreported"
UNACCOUNTED = "unaccounted"

MEANINGS = {
    TRAIN: "steps, validation and callbacks",
    RECOMPUTED: "the same, lost: these steps had to be run again, or will have to",
    COMPILE: "from the start of fit's first epoch to the end of the first step, which the backend compiles",
    START_UP: "starting Python, importing, building the model, agreeing with the other workers",
    RESTORE: "reading a checkpoint and taking it over",
    REPLAY: "bringing the input to where it stood",
    HOLD: "waiting for the other workers at the agreed step",
    SAVE: "training stood still for a save",
    HANG: "from the last progress to the end of the processes, of a job that hung",
    LEAVE: "from the end of the fit to the end of the process",
    IDLE: "no process: from the end of one to the start of the next",
    UNREPORTED: "no end is recorded: it trained on for a while, or was gone already",
    UNACCOUNTED: "events are missing",
}
"""What a worker can have spent its time on, in the order of display."""

_FITTING = frozenset({COMPILE, TRAIN})
_OVER = "over"
_MOST_VERSIONS = 20


@dataclass(frozen=True)
class Span:
    """A stretch of time spent on one thing, from `began` to `ended` in seconds since 1970; `what` is of `MEANINGS`."""

    what: str
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass
class Timeline:
    """Consecutive spans, without gaps and overlaps, from one moment in seconds since 1970 to `at`."""

    at: float
    spans: list[Span] = field(default_factory=list)

    def until(self, moment: float, what: str) -> None:
        """Adds that everything up to a moment was `what`; does nothing if the timeline is past it: clocks go back."""
        if moment <= self.at:
            return
        began = self.at
        if self.spans and self.spans[-1].what == what:
            began = self.spans.pop().began
        self.spans.append(Span(what, began, moment))
        self.at = moment


class End(str, enum.Enum):
    """How a worker, or a whole start of the job, has ended."""

    FINISHED = "finished"
    PREEMPTED = "preempted"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    HUNG = "hung"
    KILLED = "killed"
    SILENT = "ended without reporting"
    RUNNING = "running"


@dataclass(frozen=True)
class Spent:
    """All time of a worker, as spans without gaps and overlaps."""

    spans: tuple[Span, ...]

    @property
    def began(self) -> float:
        """When its process, or the first one, was started, as far as known."""
        return self.spans[0].began

    @property
    def ended(self) -> float:
        return self.spans[-1].ended

    @property
    def wall(self) -> float:
        return self.ended - self.began

    def seconds(self, what: str, began: float = 0.0, ended: float = math.inf) -> float:
        """Seconds that it spent on something between two moments."""
        spans = [span for span in self.spans if span.what == what]
        return sum(max(0.0, min(span.ended, ended) - max(span.began, began)) for span in spans)


@dataclass(frozen=True)
class WorkerRun(Spent):
    incarnation: int  # the number of the start
    member: int  # the number of the worker
    end: End
    why: str  # details of that, in words; may be empty
    first_step: int | None  # training steps done when its first step was next; None if it did not get there
    last_step: int | None  # training steps done at its last event that says so
    exact: bool  # whether it ended exactly there, and not possibly later
    samples: tuple[Sample, ...]  # when how many steps were done, as far as known
    host: str | None  # the machine that it ran on; None if it did not say
    versions: tuple[tuple[str, str], ...]  # of its software, by name; empty if it did not say
    ahead: int | None  # how many steps it can have done after `last_step`, if known


def turned(spans: Sequence[Span], since: float, into: str, only: str | None = None) -> tuple[Span, ...]:
    """Returns the spans with what they are from a moment on, or the part of it that is `only`, called `into`."""
    timeline = Timeline(spans[0].began)
    for span in spans:
        if only in (None, span.what):
            timeline.until(min(since, span.ended), span.what)
            timeline.until(span.ended, into)
        else:
            timeline.until(span.ended, span.what)
    return tuple(timeline.spans)


def worker_run(
    log: Sequence[Record],
    *,
    since: float | None,
    replaced_at: float | None,
    running_until: float | None,
    hung_since: float,
) -> WorkerRun | None:
    """Follows one worker through one start, by its events; returns None if all of them lie before `since`.

    That is when its previous start was over. At `replaced_at` the process of its next start began. `running_until` is
    the present time, if it may still run. From `hung_since` on its job hung, as its launcher has found; infinite if it
    did not.
    """
    start: Record = next((record for record in log if record["event"] == "start"), {})
    timeline = Timeline(max(process_began(log), since or 0.0))
    doing = START_UP if start else UNACCOUNTED
    for move in sorted(_moves(log), key=lambda move: move.ended):
        timeline.until(move.began, doing if doing in move.expects else UNACCOUNTED)
        timeline.until(move.ended, move.what)
        doing = move.then or doing
    if not timeline.spans:
        timeline.at = max(log[-1]["time"], since or 0.0)
    gone = next((record for record in log if record["event"] == "gone"), None)
    running = False
    if gone is not None:
        timeline.until(gone["time"], LEAVE if doing == _OVER else doing)
    elif doing != _OVER:
        if replaced_at is not None:
            timeline.until(replaced_at, UNREPORTED)
        elif running_until is not None:
            running = True
            timeline.until(running_until, doing)
    if not timeline.spans:
        return None
    end, why = (End.RUNNING, "") if running else _end(log, gone)
    steps = [(record["event"], step) for record in log if (step := whole(record, "step")) is not None]
    process: Any = start.get("process")
    # A host and what follows it: see `this_process.machine`.
    machine = words(process, "machine") if isinstance(process, dict) else None
    versions: Any = start.get("versions")
    named = list(versions)[:_MOST_VERSIONS] if isinstance(versions, dict) else []
    return WorkerRun(
        incarnation=log[0]["incarnation"],
        member=log[0]["member"],
        spans=turned(timeline.spans, hung_since, HANG),
        end=end,
        why=why,
        first_step=next((step for kind, step in reversed(steps) if kind == "ready"), None),
        last_step=max((step for _, step in steps), default=None),
        # A "gone" of a launcher has a step only if it knows the last one.
        exact=any(kind in ("finish", "end", "gone") for kind, _ in steps)
        or any(record["event"] == "exit" for record in log),
        samples=samples(log),
        host=(machine or "").partition(":")[0] or None,
        versions=tuple(
            (one_line(name), version) for name in named if (version := words(versions, name)) is not None
        ),
        ahead=next((whole(record, "ahead") for record in log if record["event"] == "ready"), None),
    )


def hung_in_words(hang: Record) -> str:
    phase = words(hang, "phase")
    return f"no progress for {seconds(hang, 'seconds') or 0.0:.0f} s" + (f" in {phase}" if phase else "")


class _Move(NamedTuple):
    """From `began` to `ended` it was `what`, before that one of `expects`, afterwards `then`."""

    began: float
    ended: float
    what: str
    expects: frozenset[str]
    then: str | None = None


def _moves(log: Sequence[Record]) -> Iterator[_Move]:
    starting = frozenset({START_UP})
    first = next((whole(record, "step") for record in log if record["event"] == "ready"), None)
    last_hold = max((i for i, record in enumerate(log) if record["event"] == "hold"), default=-1)
    leaves = any(record["event"] in ("exit", "finish") for record in log)
    for index, record in enumerate(log):
        kind, at = record["event"], float(record["time"])
        took = seconds(record, "seconds") or 0.0
        # With a step done it trains; if no event says since when, one is missing.
        fitting = _FITTING if whole(record, "step") in (None, first) else frozenset({TRAIN})
        if kind == "start":
            read_at, read = seconds(record, "read_at"), seconds(record, "read_seconds") or 0.0
            if read_at is not None:
                yield _Move(read_at, min(read_at + read, at), RESTORE, starting)
            yield _Move(at, at, START_UP, starting, START_UP)
        elif kind == "restore":
            replay = min(took, seconds(record, "input_seconds") or 0.0)
            yield _Move(at - took, at - replay, RESTORE, starting)
            yield _Move(at - replay, at, REPLAY, starting)
        elif kind == "ready":
            yield _Move(at, at, START_UP, starting, COMPILE)
        elif kind == "first_step":
            yield _Move(at, at, COMPILE, frozenset({COMPILE}), TRAIN)
        elif kind == "hold":
            goes_on = record.get("goes_on")
            stops = not goes_on if isinstance(goes_on, bool) else index == last_hold and leaves
            held = took + (seconds(record, "before") or 0.0)
            yield _Move(at - held, at, HOLD, fitting, SAVE if stops else None)
        elif kind in ("save", "error") and record.get("background") is True:
            began, ready = seconds(record, "began_at"), seconds(record, "ready_at")
            if began is not None and ready is not None:
                yield _Move(began, ready, SAVE, fitting)
        elif kind == "error" and words(record, "origin") is not None:  # It is on its way out of fit.
            yield _Move(at, at, TRAIN, _FITTING | starting | {SAVE}, LEAVE)
        elif kind in ("exit", "finish"):
            yield _Move(at, at, SAVE, _FITTING | {SAVE}, LEAVE)
        elif kind == "end":
            yield _Move(at, at, LEAVE, _FITTING | starting | {SAVE, LEAVE}, _OVER)


def _end(log: Sequence[Record], gone: Record | None) -> tuple[End, str]:
    last = {record["event"]: record for record in log}
    if "finish" in last:
        return End.FINISHED, ""
    if "exit" in last:
        saved = words(last["exit"], "saved")
        step = None if saved is None else step_of(saved)
        where = "" if step is None else f" at step {step:,}"
        interrupted = last["exit"].get("code") == EXIT_INTERRUPTED
        end = End.INTERRUPTED if interrupted else End.PREEMPTED
        why = "NOT saved" if saved is None else f"saved{where}"
        # Told to end, it has come on after all.
        return (End.HUNG, f"{hung_in_words(last['hang'])}; {why}") if "hang" in last else (end, why)
    if "hang" in last:
        return End.HUNG, hung_in_words(last["hang"])
    if "end" in last:
        error = words(last.get("error", {}), "reason") or words(last["end"], "reason") or ""
        return (End.FINISHED, "") if error == "training is over" else (End.FAILED, error)
    code = None if gone is None else integer(gone.get("code"), 1 - 2**31, 2**31 - 1)
    if code is None:
        return End.SILENT, ""
    if code < 0:
        return End.KILLED, f"by {signal_name(-code)}"
    return End.FAILED, f"exit status {code}; it reported nothing"
