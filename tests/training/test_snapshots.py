"""Snapshots are taken at boundaries where they are due; where there are none, a user is told what a resume costs."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from keras_preempt.training import snapshots
from keras_preempt.training.runtime import NEVER
from keras_preempt.training.snapshots import ReplayCost, SnapshotTaker, spoken


class Taken:
    """Snapshots that take a while, of which the last fails."""

    expected = 0.001

    def __init__(self, clock: list[float], last: int = 1000) -> None:
        self.clock = clock
        self.at: list[int] = []
        self.last = last
        self.given_up = ""
        self.held = 123

    def take(self, batches: int) -> bool:
        self.clock[0] += 0.004
        self.at.append(batches)
        if len(self.at) == self.last:
            self.given_up = "its state has grown"
        return not self.given_up


def feed_of(taken: Taken | None, entered: list[int]) -> Any:
    return SimpleNamespace(
        snapshots=taken,
        steps_per_execution=1,
        position=lambda *, pending: {"batches": entered[0] - 1 if pending else entered[0]},
    )


def train(
    taker: SnapshotTaker, clock: list[float], entered: list[int], steps: int, seconds: float
) -> list[float]:
    """Passes boundaries of training; returns how long each look took."""
    looks = []
    for _ in range(steps):
        entered[0] += 1
        if entered[0] >= taker.next_boundary():
            looks.append(taker.boundary(entered[0]))
        clock[0] += seconds
    return looks


def test_a_snapshot_is_taken_at_the_boundary_where_it_is_due_and_its_time_is_told() -> None:
    clock, entered = [10.0], [0]
    taken = Taken(clock)
    taker = SnapshotTaker(feed_of(taken, entered), 3, tells=True, clock=lambda: clock[0])
    looks = train(taker, clock, entered, 300, 0.01)
    stretches = [later - earlier for earlier, later in zip(taken.at, taken.at[1:], strict=False)]
    assert len(taken.at) >= 4
    # The first took longer than expected, and is paid for. Then 0.4 s: a hundred times 4 ms.
    assert all(38 <= stretch <= 42 for stretch in stretches[1:]), stretches
    assert [pytest.approx(0.004)] * len(taken.at) == [look for look in looks if look]
    assert taker.held == 123


def test_a_validation_is_no_training() -> None:
    clock, entered = [10.0], [0]
    taken = Taken(clock)
    taker = SnapshotTaker(feed_of(taken, entered), 3, tells=True, clock=lambda: clock[0])
    for _ in range(100):
        train(taker, clock, entered, 1, 0.001)
        taker.pauses()
        clock[0] += 60.0
    assert not taken.at


def test_where_it_is_given_up_no_boundary_is_looked_at_and_it_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, entered = [10.0], [0]
    taken = Taken(clock, last=2)
    taker = SnapshotTaker(feed_of(taken, entered), 3, tells=False, clock=lambda: clock[0])
    with caplog.at_level(logging.INFO, "keras_preempt"):
        train(taker, clock, entered, 2000, 0.01)
    assert len(taken.at) == 2
    assert taker.next_boundary() == NEVER
    assert [record.getMessage() for record in caplog.records] == [
        "No more snapshots of the input are taken: its state has grown. A resume draws its batches again."
    ]


def test_without_snapshots_a_long_replay_is_announced_once_and_by_one_process(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        snapshots, "drawn_again_at_most", lambda feed, epochs: (14400, "at the end of an epoch")
    )
    for tells in (True, False):
        clock, entered = [10.0], [0]
        taker = SnapshotTaker(feed_of(None, entered), 3, tells=tells, clock=lambda clock=clock: clock[0])  # type: ignore[misc]
        with caplog.at_level(logging.INFO, "keras_preempt"):
            train(taker, clock, entered, 1, 30.0)  # The first step is compiled.
            looks = train(taker, clock, entered, 3000, 0.05)
        assert taker.next_boundary() == NEVER
        assert len(looks) <= 10
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        "A resume at the end of an epoch will replay 14,400 batches of input. That takes at most about 12 min, the "
        "time of training on them."
    )


@pytest.mark.parametrize("at_most", [None, (1000, "at the end of training")])
def test_a_short_replay_is_no_news(at_most: Any, caplog: pytest.LogCaptureFixture) -> None:
    cost = ReplayCost(lambda: at_most)
    with caplog.at_level(logging.INFO, "keras_preempt"):
        due = [cost.boundary(entered, entered * 0.05, 1) for entered in (1, 2, 18, 34, 66, 130)]
    assert due == [2, 18, 34, 66, 130, NEVER]
    assert not caplog.records


def test_times_are_spoken_in_one_unit() -> None:
    assert [spoken(seconds) for seconds in (61.0, 720.0, 7199.0, 7200.0, 90_000.0, 200_000.0)] == [
        "61 s",
        "12 min",
        "120 min",
        "2 h",
        "25 h",
        "2 days",
    ]
