from __future__ import annotations

import os

import pytest

from keras_preempt.agreement.alignment import Position
from keras_preempt.report.events import EventLog, Milestones


class Told(EventLog):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(0)
        self.events: list[tuple[str, dict[str, object]]] = []

    def emit(self, kind: str, **fields: object) -> None:
        super().emit(kind, **fields)
        self.events.append((kind, fields))


def at(step: int) -> Position:
    return Position(0, "train", step, step)


def test_the_first_step_is_told_once_and_not_before_it_is_done() -> None:
    told = Told()
    milestones = Milestones(told)
    milestones.passed(at(7))
    assert not milestones.awaits_step
    milestones.ready(at(7), epochs=2)
    milestones.passed(at(7))  # Before the step, such as where the epoch begins.
    assert milestones.awaits_step
    for step in (8, 9, 10):
        milestones.passed(at(step))
        assert not milestones.awaits_step
    assert [kind for kind, _ in told.events] == ["ready", "first_step"]
    assert told.events[1][1]["step"] == 8


def test_a_start_tells_what_came_before_it_in_the_order_in_which_it_was() -> None:
    told = Told()
    milestones = Milestones(told)
    milestones.read(began=0.0)
    milestones.started(incarnation=3, members=2)
    ((kind, start),) = told.events
    assert (kind, start["incarnation"], start["members"]) == ("start", 3, 2)
    process, started, began = start["process"], start["started_at"], start["began_at"]
    assert isinstance(process, dict)
    assert process["pid"] == os.getpid()
    assert isinstance(started, float)
    assert isinstance(began, float)
    assert started < began
    assert start["read_at"] == 0.0
    assert start["read_seconds"] == pytest.approx(began, rel=0.01)


def test_a_child_of_the_process_does_not_tell_of_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    milestones = Milestones(told)
    owner = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: owner + 1)
    milestones.end("an exception", lambda: pytest.fail("asked in a child"))
    assert told.events == []
    monkeypatch.undo()
    milestones.end("an exception", lambda: 12)
    assert told.events == [("end", {"reason": "an exception", "step": 12})]
