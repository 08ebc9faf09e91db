"""How fast a worker trained in one start: what its events tell of times and steps. Pure.

Nothing is written at ordinary steps. A worker remembers when an epoch or a validation began, and its next event tells
it; together with the steps that events name themselves this gives points, and a speed from each to the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from keras_preempt.checkpoint.fields import integer, number
from keras_preempt.report.fields import LATEST, Event, seconds, truth, whole

_MOST_MARKS = 1 << 12
"""Marks of one event that are read; this version writes fewer."""


@dataclass(frozen=True)
class Mark:
    """At that moment (seconds since 1970) so many training steps were done."""

    at: float
    step: int


@dataclass(frozen=True)
class Stretch:
    """From one mark to the next: from `began` to `ended`, and from step `first` to step `last`."""

    began: float
    ended: float
    first: int
    last: int

    @property
    def speed(self) -> float:
        """Steps a second."""
        return (self.last - self.first) / (self.ended - self.began)


def marks(events: Sequence[Event]) -> tuple[Mark, ...]:
    """Returns what one worker in one start tells of its steps, from the end of its first step on.

    Args:
        events: Its events there, in the order of their times.
    """
    found: list[Mark] = []
    for mark in sorted(_told(events), key=lambda mark: (mark.at, mark.step)):
        # Clocks go back, and events may have been written by anybody: steps only rise, and so do times.
        if not found or (mark.at > found[-1].at and mark.step >= found[-1].step):
            found.append(mark)
    return tuple(found)


def split(stretch: Stretch, step: int | None) -> tuple[Stretch, ...]:
    """Cuts a stretch at a step within it, as if all its steps had taken equally long."""
    if step is None or not stretch.first < step < stretch.last:
        return (stretch,)
    part = (step - stretch.first) / (stretch.last - stretch.first)
    at = stretch.began + part * (stretch.ended - stretch.began)
    return (
        Stretch(stretch.began, at, stretch.first, step),
        Stretch(at, stretch.ended, step, stretch.last),
    )


def stretches(course: Sequence[Mark]) -> Iterator[Stretch]:
    """Yields what lies between each mark and the next."""
    for before, after in itertools.pairwise(course):
        yield Stretch(before.at, after.at, before.step, after.step)


def _told(events: Sequence[Event]) -> Iterator[Mark]:
    first = next((event for event in events if event["event"] == "first_step"), None)
    since = None if first is None else float(first["time"])
    told = any(event["event"] in ("finish", "exit") for event in events)
    for event in events:
        if told and event["event"] in ("end", "gone"):
            continue  # Long after the last step.
        for mark in _of(event):
            if since is not None and mark.at >= since:
                yield mark


def _of(event: Event) -> Iterable[Mark]:
    passed = event.get("passed")
    for pair in passed[:_MOST_MARKS] if isinstance(passed, list) else ():
        if isinstance(pair, list) and len(pair) == 2:
            at, step = number(pair[0], 0.0, LATEST), integer(pair[1])
            if at is not None and step is not None:
                yield Mark(at, step)
    done, at = whole(event, "step"), float(event["time"])
    if done is None:
        return
    kind = event["event"]
    if kind in ("first_step", "finish", "end", "gone"):
        yield Mark(at, done)
    elif kind == "hold":
        yield Mark(at - (seconds(event, "seconds") or 0.0) - (seconds(event, "before") or 0.0), done)
        yield Mark(at, done)
    elif kind == "save" and truth(event, "background"):
        for name in ("began_at", "ready_at"):
            if (moment := seconds(event, name)) is not None:
                yield Mark(moment, done)
