"""What the main thread of one worker did when, in one start of the job. Pure.

A worker does one thing at a time, and its events tell when it turned to the next: so its time falls into spans
without a gap. Where the event that should have come before is missing, nobody can say what the time up to
then was, and it is `UNACCOUNTED`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from keras_preempt.report.fields import Event, seconds, truth, whole, words

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
    COMPILE: "from the start of fit's first epoch to the end of the first step, which TensorFlow compiles",
    START_UP: "starting Python, importing, building the model, agreeing with the other workers",
    RESTORE: "reading a checkpoint and taking it over",
    REPLAY: "bringing the input to where it stood",
    HOLD: "waiting for the other workers at the agreed step",
    SAVE: "training stood still for a save",
    LEAVE: "from the end of the fit to the end of the process",
    IDLE: "no process: from the end of one to the start of the next",
    UNTOLD: "no end was told: it trained on for a while, or was gone already",
    UNACCOUNTED: "events are missing",
}
"""What a worker's time can have gone into, in the order of display."""

_FITTING = frozenset({COMPILE, TRAIN})
_OVER = "over"


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
    """Spans one after the other, without gaps and overlaps.

    Args:
        at: Where it begins, in seconds since 1970.

    Attributes:
        at: Where it has come to.
    """

    def __init__(self, at: float) -> None:
        self.at = at
        self._spans: list[Span] = []

    def until(self, moment: float, what: str) -> None:
        """Everything up to a moment was that; does nothing if the timeline is past it, as clocks may go back."""
        if moment <= self.at:
            return
        began = self.at
        if self._spans and self._spans[-1].what == what:
            began = self._spans.pop().began
        self._spans.append(Span(what, began, moment))
        self.at = moment

    @property
    def spans(self) -> tuple[Span, ...]:
        """What there is until now."""
        return tuple(self._spans)


@dataclass(frozen=True)
class _Move:
    """From `began` to `ended` it was `what`; before that what `expects` names; afterwards `then`."""

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
        doing: What it did when it told that.
        over: Whether it has told that its fit is over.
    """

    spans: tuple[Span, ...]
    doing: str
    over: bool


def began_at(events: Sequence[Event]) -> float:
    """When the process of these events was started, as far as they tell; there is at least one."""
    first: float = min(event["time"] for event in events)
    starts = [seconds(event, "started_at") for event in events if event["event"] == "start"]
    return min(first, *(start for start in starts if start is not None), first)


def trace(events: Sequence[Event], since: float | None = None) -> Trace:
    """Follows one worker through one start.

    Args:
        events: Its events, in the order of their times; at least one.
        since: When the start before was over in the same process or another; None for no such moment.
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
        # With a step done it trains, and if nothing tells since when, an event is missing.
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
