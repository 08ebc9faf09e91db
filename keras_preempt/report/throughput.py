"""How fast a worker trained in one start, from what its events say of times and steps. Pure.

Nothing is written at ordinary steps. A worker remembers when an epoch or a validation began, and includes it in its
next event; together with the steps that events name themselves this gives samples, and a speed from each to the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from keras_preempt.process.json_fields import integer, number
from keras_preempt.report.event import LATEST, Record, seconds, whole

_MOST_PASSED = 1 << 12
"""Samples of one event that are read; this version writes fewer."""


@dataclass(frozen=True)
class Sample:
    """At that moment (seconds since 1970) so many training steps were done."""

    at: float
    step: int


@dataclass(frozen=True)
class Stretch:
    """From one sample to the next: from `began` to `ended`, and from step `first` to step `last`."""

    began: float
    ended: float
    first: int
    last: int

    @property
    def speed(self) -> float:
        return (self.last - self.first) / (self.ended - self.began)


def samples(log: Sequence[Record]) -> tuple[Sample, ...]:
    """Returns the samples of one worker in one start, by its events, from the end of its first step on."""
    since = next((float(record["time"]) for record in log if record["event"] == "first_step"), float("inf"))
    late = ("end", "gone") if any(record["event"] in ("finish", "exit") for record in log) else ()
    known = [sample for record in log if record["event"] not in late for sample in _samples_of(record)]
    found: list[Sample] = []
    for sample in sorted(known, key=lambda sample: (sample.at, sample.step)):
        # Clocks go back, and events may have been written by anybody: steps only rise, and so do times.
        if sample.at >= since and (not found or (sample.at > found[-1].at and sample.step >= found[-1].step)):
            found.append(sample)
    return tuple(found)


def _samples_of(record: Record) -> Iterator[Sample]:
    passed = record.get("passed")
    for pair in passed[:_MOST_PASSED] if isinstance(passed, list) else ():
        if isinstance(pair, list) and len(pair) == 2:
            at, step = number(pair[0], 0.0, LATEST), integer(pair[1])
            if at is not None and step is not None:
                yield Sample(at, step)
    if (done := whole(record, "step")) is None:
        return
    kind, time = record["event"], float(record["time"])
    if kind in ("first_step", "finish", "end", "gone"):
        yield Sample(time, done)
    elif kind == "hang":
        yield Sample(time - (seconds(record, "seconds") or 0.0), done)
    elif kind == "hold":
        yield Sample(time - (seconds(record, "seconds") or 0.0) - (seconds(record, "before") or 0.0), done)
        yield Sample(time, done)
    elif kind == "save" and record.get("background") is True:
        for name in ("began_at", "ready_at"):
            if (moment := seconds(record, name)) is not None:
                yield Sample(moment, done)


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


def stretches(known: Sequence[Sample]) -> tuple[Stretch, ...]:
    pairs = itertools.pairwise(known)
    return tuple(Stretch(before.at, after.at, before.step, after.step) for before, after in pairs)
