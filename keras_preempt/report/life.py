"""One worker in one start of the job: what its main thread did when, how far it came, how it ended. Pure.

A worker does one thing at a time, and its events say when it turned to the next, so that its time falls into spans
without gaps. Where the event that should have come before is missing, the time up to the next one is `UNACCOUNTED`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from keras_preempt.checkpoint.errors import one_line
from keras_preempt.checkpoint.layout import step_of
from keras_preempt.process.exit_codes import EXIT_INTERRUPTED, signal_name
from keras_preempt.report import course
from keras_preempt.report.course import Mark
from keras_preempt.report.fields import Event, seconds, status, truth, whole, words

START_UP = "start-up"
RESTORE = "restore"
REPLAY = "replay"
COMPILE = "compile"
TRAIN = "train"
HOLD = "hold"
SAVE = "save"
LEAVE = "leave"
IDLE = "idle"
UNTOLD = "untold"
UNACCOUNTED = "unaccounted"

MEANINGS = {
    TRAIN: "steps, validation and callbacks",
    COMPILE: "from the start of fit's first epoch to the end of the first step, which the backend compiles",
    START_UP: "starting Python, importing, building the model, agreeing with the other workers",
    RESTORE: "reading a checkpoint and taking it over",
    REPLAY: "bringing the input to where it stood",
    HOLD: "waiting for the other workers at the agreed step",
    SAVE: "training stood still for a save",
    LEAVE: "from the end of the fit to the end of the process",
    IDLE: "no process: from the end of one to the start of the next",
    UNTOLD: "no end is recorded: it trained on for a while, or was gone already",
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
        """How long it took."""
        return self.ended - self.began


class Timeline:
    """Consecutive spans, without gaps and overlaps.

    Args:
        at: Where it begins, in seconds since 1970.

    Attributes:
        at: Where it ends so far.
    """

    def __init__(self, at: float) -> None:
        self.at = at
        self._spans: list[Span] = []

    def until(self, moment: float, what: str) -> None:
        """Adds that everything up to a moment was `what`; does nothing if the timeline is past it: clocks go back."""
        if moment <= self.at:
            return
        began = self.at
        if self._spans and self._spans[-1].what == what:
            began = self._spans.pop().began
        self._spans.append(Span(what, began, moment))
        self.at = moment

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans so far."""
        return tuple(self._spans)


@dataclass(frozen=True)
class _Move:
    """From `began` to `ended` it was `what`, before that one of `expects`, afterwards `then`."""

    began: float
    ended: float
    what: str
    expects: frozenset[str]
    then: str | None = None


@dataclass(frozen=True)
class Trace:
    """What one worker is known to have done in one start.

    Attributes:
        spans: Up to its last event.
        doing: What it did at its last event.
        over: Whether it has reported the end of its fit.
    """

    spans: tuple[Span, ...]
    doing: str
    over: bool


def began_at(events: Sequence[Event]) -> float:
    """Returns when the process of these events was started, as far as they say; there is at least one event."""
    first: float = min(event["time"] for event in events)
    starts = [seconds(event, "started_at") for event in events if event["event"] == "start"]
    return min(first, *(start for start in starts if start is not None), first)


def trace(events: Sequence[Event], since: float | None = None) -> Trace:
    """Follows one worker through one start.

    Args:
        events: Its events, in the order of their times; at least one.
        since: When the previous start was over, in the same process or another; None if there was none.
    """
    known = any(event["event"] == "start" for event in events)
    timeline = Timeline(max(began_at(events), since or 0.0))
    doing = START_UP if known else UNACCOUNTED
    for move in sorted(_moves(events), key=lambda move: move.ended):
        timeline.until(move.began, doing if doing in move.expects else UNACCOUNTED)
        timeline.until(move.ended, move.what)
        doing = move.then or doing
    over = doing == _OVER
    return Trace(timeline.spans, LEAVE if over else doing, over)


def _moves(events: Sequence[Event]) -> Iterable[_Move]:
    starting = frozenset({START_UP})
    first = next((whole(event, "step") for event in events if event["event"] == "ready"), None)
    last_hold = max((i for i, event in enumerate(events) if event["event"] == "hold"), default=-1)
    leaves = any(event["event"] in ("exit", "finish") for event in events)
    for index, event in enumerate(events):
        kind, at = event["event"], float(event["time"])
        took = seconds(event, "seconds") or 0.0
        # With a step done it trains; if no event says since when, one is missing.
        fitting = _FITTING if whole(event, "step") in (None, first) else frozenset({TRAIN})
        if kind == "start":
            read_at, read = seconds(event, "read_at"), seconds(event, "read_seconds") or 0.0
            if read_at is not None:
                yield _Move(read_at, min(read_at + read, at), RESTORE, starting)
            yield _Move(at, at, START_UP, starting, START_UP)
        elif kind == "restore":
            replay = min(took, seconds(event, "input_seconds") or 0.0)
            yield _Move(at - took, at - replay, RESTORE, starting)
            yield _Move(at - replay, at, REPLAY, starting)
        elif kind == "ready":
            yield _Move(at, at, START_UP, starting, COMPILE)
        elif kind == "first_step":
            yield _Move(at, at, COMPILE, frozenset({COMPILE}), TRAIN)
        elif kind == "hold":
            goes_on = truth(event, "goes_on")
            stops = index == last_hold and leaves if goes_on is None else not goes_on
            held = took + (seconds(event, "before") or 0.0)
            yield _Move(at - held, at, HOLD, fitting, SAVE if stops else None)
        elif kind in ("save", "error") and truth(event, "background"):
            began, ready = seconds(event, "began_at"), seconds(event, "ready_at")
            if began is not None and ready is not None:
                yield _Move(began, ready, SAVE, fitting)
        elif kind == "error" and words(event, "origin") is not None:  # It is on its way out of fit.
            yield _Move(at, at, TRAIN, _FITTING | starting | {SAVE}, LEAVE)
        elif kind in ("exit", "finish"):
            yield _Move(at, at, SAVE, _FITTING | {SAVE}, LEAVE)
        elif kind == "end":
            yield _Move(at, at, LEAVE, _FITTING | starting | {SAVE, LEAVE}, _OVER)


class End(str, enum.Enum):
    """How a worker, or a whole start of the job, has ended."""

    FINISHED = "finished"
    PREEMPTED = "preempted"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    KILLED = "killed"
    SILENT = "ended without a word"
    RUNNING = "running"


@dataclass(frozen=True)
class Life:
    """One worker in one start.

    Attributes:
        incarnation: The number of the start.
        member: The number of the worker.
        spans: All its time, from the start of its process.
        end: How it ended.
        why: Details of that, in words; may be empty.
        first_step: Training steps done when its first step was next; None if it did not get there.
        last_step: Training steps done at its last event that says so.
        exact: Whether it ended exactly there, and not possibly later.
        course: When how many steps were done, as far as known.
        host: The machine that it ran on; None if it did not say.
        versions: Those of its software, by name; empty if it did not say.
        ahead: How many steps it can have done after `last_step`, if it did not end there; None if that is not known.
    """

    incarnation: int
    member: int
    spans: tuple[Span, ...]
    end: End
    why: str
    first_step: int | None
    last_step: int | None
    exact: bool
    course: tuple[Mark, ...] = ()
    host: str | None = None
    versions: tuple[tuple[str, str], ...] = ()
    ahead: int | None = None

    @property
    def began(self) -> float:
        """When its process was started, as far as known."""
        return self.spans[0].began

    @property
    def ended(self) -> float:
        """When what is known of it ends."""
        return self.spans[-1].ended

    def seconds(self, what: str) -> float:
        """Seconds that it spent on something."""
        return sum(span.seconds for span in self.spans if span.what == what)

    def seconds_within(self, what: str, began: float, ended: float) -> float:
        """Seconds that it spent on something between two moments."""
        spans = [span for span in self.spans if span.what == what]
        return sum(max(0.0, min(span.ended, ended) - max(span.began, began)) for span in spans)

    def useful_seconds(self, kept_until: int | None, saved_at: float | None) -> float:
        """Seconds in which it trained steps that did not have to be run again.

        Args:
            kept_until: The step from which a later start continued, if this one has done it; else None.
            saved_at: When this worker began to save that step; None if that is unknown.
        """
        if kept_until is None or self.first_step is None or self.last_step is None:
            return self._trained_until(None)
        if not self.exact:
            return self._trained_until(saved_at or self.began)
        run = self.last_step - self.first_step
        kept = max(0, kept_until - self.first_step)
        return self._trained_until(None) * (min(kept, run) / run if run else 1.0)

    def _trained_until(self, moment: float | None) -> float:
        return self.seconds_within(TRAIN, self.began, self.ended if moment is None else moment)


def live(
    incarnation: int,
    member: int,
    events: Sequence[Event],
    *,
    since: float | None,
    replaced_at: float | None,
    running_until: float | None,
) -> Life | None:
    """Follows one worker through one start.

    Args:
        incarnation: The number of the start.
        member: The number of the worker.
        events: Its events there, in the order of their times.
        since: When what is known of its previous start ends.
        replaced_at: When the process of its next start began; None if there is none.
        running_until: The present time, if it may still run.

    Returns:
        Its life; None if all its events lie before `since`.
    """
    told = trace(events, since)
    timeline = Timeline(told.spans[0].began if told.spans else max(events[-1]["time"], since or 0.0))
    for span in told.spans:
        timeline.until(span.ended, span.what)
    gone = next((event for event in events if event["event"] == "gone"), None)
    running = False
    if gone is not None:
        timeline.until(gone["time"], told.doing)
    elif not told.over:
        if replaced_at is not None:
            timeline.until(replaced_at, UNTOLD)
        elif running_until is not None:
            running = True
            timeline.until(running_until, told.doing)
    if not timeline.spans:
        return None
    end, why = (End.RUNNING, "") if running else _end(events, gone)
    first, last, exact = _steps(events)
    host, versions = _where(events)
    return Life(
        incarnation,
        member,
        timeline.spans,
        end,
        why,
        first,
        last,
        exact,
        course.marks(events),
        host,
        versions,
        next((whole(event, "ahead") for event in events if event["event"] == "ready"), None),
    )


def _where(events: Sequence[Event]) -> tuple[str | None, tuple[tuple[str, str], ...]]:
    start: Event = next((event for event in events if event["event"] == "start"), {})
    process: Any = start.get("process")
    versions: Any = start.get("versions")
    # A host and what follows it: see `this_process.machine`.
    machine = words(process, "machine") if isinstance(process, dict) else None
    named = list(versions)[:_MOST_VERSIONS] if isinstance(versions, dict) else []
    known = [(one_line(name), version) for name in named if (version := words(versions, name)) is not None]
    return (machine or "").partition(":")[0] or None, tuple(known)


def _end(events: Sequence[Event], gone: Event | None) -> tuple[End, str]:
    told = {event["event"]: event for event in events}
    code = None if gone is None else status(gone, "code")
    if "finish" in told:
        return End.FINISHED, ""
    if "exit" in told:
        saved = words(told["exit"], "saved")
        step = None if saved is None else step_of(saved)
        where = "" if step is None else f" at step {step:,}"
        interrupted = status(told["exit"], "code") == EXIT_INTERRUPTED
        end = End.INTERRUPTED if interrupted else End.PREEMPTED
        return end, "NOT saved" if saved is None else f"saved{where}"
    if "end" in told:
        error = words(told.get("error", {}), "reason") or words(told["end"], "reason") or ""
        if error == "training is over":
            return End.FINISHED, ""
        return End.FAILED, error
    if code is not None and code < 0:
        return End.KILLED, f"by {signal_name(-code)}"
    if code is not None:
        return End.FAILED, f"exit status {code}; it reported nothing"
    return End.SILENT, ""


def _steps(events: Sequence[Event]) -> tuple[int | None, int | None, bool]:
    first = last = None
    exact = False
    for event in events:
        step = whole(event, "step")
        if step is None:
            continue
        if event["event"] == "ready":
            first = step
        last = step if last is None else max(last, step)
        # A "gone" of a launcher has a step only if it knows the last one.
        exact = exact or event["event"] in ("finish", "end", "gone")
    return first, last, exact or any(event["event"] == "exit" for event in events)
