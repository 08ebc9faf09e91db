"""One worker in one start of the job: what it did, how far it came, how it ended. Pure."""

from __future__ import annotations

import enum
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from keras_preempt.checkpoint.layout import parse_step
from keras_preempt.report.fields import Event, status, whole, words
from keras_preempt.report.spans import TRAIN, UNTOLD, Span, Timeline, trace


class End(str, enum.Enum):
    """How a worker, or a whole start of the job, has ended."""

    FINISHED = "finished"
    PREEMPTED = "preempted"
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
        why: More about that, in words; empty for nothing.
        first_step: Optimizer steps done when its first step was next; None if it did not come so far.
        last_step: Optimizer steps done when it last told.
        exact: Whether it came exactly so far, and not possibly farther.
    """

    incarnation: int
    member: int
    spans: tuple[Span, ...]
    end: End
    why: str
    first_step: int | None
    last_step: int | None
    exact: bool

    @property
    def began(self) -> float:
        """When its process was started, as far as is known."""
        return self.spans[0].began

    @property
    def ended(self) -> float:
        """The end of what is known of it."""
        return self.spans[-1].ended

    def seconds(self, what: str) -> float:
        """How much of its time went into something."""
        return sum(span.seconds for span in self.spans if span.what == what)

    def useful_seconds(self, kept_until: int | None, saved_at: float | None) -> float:
        """How long it trained steps that did not have to be run again.

        Args:
            kept_until: The step from which a later start went on, if it is one that this one has done; else None.
            saved_at: When this worker turned to the save of that step; None if it did not tell.
        """
        if kept_until is None or self.first_step is None or self.last_step is None:
            return self._trained_until(None)
        if not self.exact:
            return self._trained_until(saved_at or self.began)
        run = self.last_step - self.first_step
        kept = max(0, kept_until - self.first_step)
        return self._trained_until(None) * (min(kept, run) / run if run else 1.0)

    def _trained_until(self, moment: float | None) -> float:
        return sum(
            max(0.0, (span.ended if moment is None else min(span.ended, moment)) - span.began)
            for span in self.spans
            if span.what == TRAIN
        )


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
        events: What it told there, in the order of the times.
        since: When what is known of its start before ends.
        replaced_at: When the process of its next start began; None if there is none.
        running_until: The present time, if it may still run and has not said that it is over.

    Returns:
        None if its events lie in the past of the start before, so that there is nothing to tell.
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
    return Life(incarnation, member, timeline.spans, end, why, first, last, exact)


def _end(events: Sequence[Event], gone: Event | None) -> tuple[End, str]:
    told = {event["event"]: event for event in events}
    code = None if gone is None else status(gone, "code")
    if "finish" in told:
        return End.FINISHED, ""
    if "exit" in told:
        saved = words(told["exit"], "saved")
        step = None if saved is None else parse_step(saved.partition("/")[0])
        where = "" if step is None else f" at step {step:,}"
        return End.PREEMPTED, "NOT saved" if saved is None else f"saved{where}"
    if "end" in told:
        error = words(told.get("error", {}), "reason") or words(told["end"], "reason") or ""
        if error == "training is over":
            return End.FINISHED, ""
        return End.FAILED, error
    if code is not None and code < 0:
        return End.KILLED, f"by {_signal_name(-code)}"
    if code is not None:
        return End.FAILED, f"exit status {code}, without a word"
    return End.SILENT, ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


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
        exact = exact or event["event"] in ("finish", "end", "gone")  # A launcher tells only what it knows.
    stopped = [event for event in events if event["event"] == "exit"]
    return first, last, exact or bool(stopped)
