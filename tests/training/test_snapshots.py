"""Snapshots are taken where they are due and cost their share; without them it is said what a resume costs."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest

from keras_preempt.training.save import snapshots
from keras_preempt.training.save.schedule import NEVER
from keras_preempt.training.save.snapshots import (
    SHARE,
    WORTH,
    ReplayCost,
    SnapshotSchedule,
    SnapshotTaker,
    spoken,
)


class Scheduled:
    """Trains under a schedule in a time of its own, and takes the snapshots that are due."""

    def __init__(self, expected: float) -> None:
        self.schedule = SnapshotSchedule(expected)
        self.now = 1000.0
        self.entered = 0
        self.trained = self.spent = 0.0
        self.taken: list[float] = []
        self.looks = 0
        self._due = 0
        self.schedule.trains(self.now)

    def steps(self, count: int, seconds: float, cost: float) -> None:
        for _ in range(count):
            self.now += seconds
            self.trained += seconds
            self.entered += 1
            if self.entered < self._due:
                continue
            self.looks += 1
            self.schedule.trains(self.now)
            if self.schedule.left <= 0:
                self.now += cost
                self.spent += cost
                self.taken.append(self.trained)
                self.schedule.took(cost, self.now)
            self._due = self.entered + self.schedule.boundaries_left(self.entered)

    @property
    def stretches(self) -> list[float]:
        return [later - earlier for earlier, later in zip([0.0, *self.taken], self.taken, strict=False)]


@pytest.mark.parametrize("step", [0.001, 0.03, 0.4])
@pytest.mark.parametrize("cost", [0.0005, 0.02, 0.3])
def test_few_boundaries_are_looked_at_and_no_stretch_is_longer_than_its_worth_or_what_a_snapshot_costs(
    step: float, cost: float
) -> None:
    training = Scheduled(expected=cost)
    training.steps(int(400 / step), step, cost)
    wanted = max(WORTH, cost / SHARE)
    assert training.taken
    # A look comes at most one gap late: as many boundaries as the stretch before, which begins with single ones.
    assert max(training.stretches) <= 2 * wanted + step
    assert min(training.stretches) >= wanted - step
    assert training.spent <= SHARE * training.trained
    assert training.looks <= 6 * len(training.taken)


def test_all_snapshots_together_take_no_more_than_their_share_also_if_longer_than_expected() -> None:
    randomness = random.Random(5)
    training = Scheduled(expected=0.001)
    for _ in range(3000):
        training.steps(1, randomness.choice([0.01, 0.1, 1.0]), randomness.expovariate(1 / 0.05))
        if training.taken and training.taken[-1] == training.trained:
            last = training.schedule.cost
            assert training.spent - last <= SHARE * training.trained + 1.0
    assert len(training.taken) > 20
    # Nobody knows what the next one takes; it is all that can be too much.
    assert training.spent <= SHARE * training.trained + 0.5


def test_one_that_takes_long_is_paid_for_before_the_next() -> None:
    training = Scheduled(expected=0.001)
    training.steps(1000, 0.01, 0.001)
    before = len(training.taken)
    while len(training.taken) == before:
        training.steps(1, 0.01, 2.0)
    at = training.trained
    training.steps(30_000, 0.01, 0.001)
    assert training.taken[before + 1] - at >= 2.0 / SHARE - at - 1
    assert training.spent <= SHARE * training.trained


def test_a_pause_of_training_does_not_count() -> None:
    schedule = SnapshotSchedule(expected=0.001)
    schedule.trains(10.0)
    schedule.pauses(10.1)
    schedule.pauses(400.0)
    schedule.trains(500.0)
    assert schedule.left == pytest.approx(WORTH - 0.1)


def test_after_a_slow_first_step_the_pace_is_found_again() -> None:
    training = Scheduled(expected=0.001)
    training.steps(1, 20.0, 0.001)
    training.steps(5000, 0.001, 0.001)
    assert 5.0 / WORTH / 2 <= len(training.taken) <= 5.0 / WORTH + 2


class Taken:
    """Snapshots that take a while, of which the last fails."""

    expected = 0.001

    def __init__(self, clock: list[float], last: int) -> None:
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


class Training:
    """A fit with these snapshots, or none, on a clock of its own."""

    def __init__(self, last: int | None = 1000, *, tells: bool = True) -> None:
        self.clock = [10.0]
        self.entered = 0
        self.taken = Taken(self.clock, last or 0)
        feed: Any = SimpleNamespace(
            snapshots=self.taken if last else None,
            steps_per_execution=1,
            position=lambda *, pending: {"batches": self.entered - 1 if pending else self.entered},
        )
        self.taker = SnapshotTaker(feed, 3, tells=tells, clock=lambda: self.clock[0])

    def train(self, steps: int, seconds: float) -> list[float]:
        """Passes boundaries of training; returns how long each look took."""
        looks = []
        for _ in range(steps):
            self.entered += 1
            if self.entered >= self.taker.next_boundary():
                looks.append(self.taker.boundary(self.entered))
            self.clock[0] += seconds
        return looks


def test_a_snapshot_is_taken_at_the_boundary_where_it_is_due_and_its_time_is_told() -> None:
    training = Training()
    looks, at = training.train(300, 0.01), training.taken.at
    stretches = [later - earlier for earlier, later in itertools.pairwise(at)]
    assert len(at) >= 4
    # The first took longer than expected, and is paid for. Then 0.4 s: a hundred times 4 ms.
    assert all(38 <= stretch <= 42 for stretch in stretches[1:]), stretches
    assert [pytest.approx(0.004)] * len(at) == [look for look in looks if look]
    assert training.taker.held == 123


def test_a_validation_is_no_training() -> None:
    training = Training()
    for _ in range(100):
        training.train(1, 0.001)
        training.taker.pauses()
        training.clock[0] += 60.0
    assert not training.taken.at


def test_once_given_up_no_boundary_is_looked_at_and_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    training = Training(last=2, tells=False)
    training.train(2000, 0.01)
    assert len(training.taken.at) == 2
    assert training.taker.next_boundary() == NEVER
    assert [record.getMessage() for record in caplog.records] == [
        "No more snapshots of the input are taken: its state has grown. A resume draws its batches again."
    ]


def test_without_snapshots_a_long_replay_is_announced_once_and_by_one_process(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = (14400, "at the end of an epoch")
    monkeypatch.setattr(snapshots, "drawn_again_at_most", lambda feed, epochs: most)
    for tells in (True, False):
        training = Training(last=None, tells=tells)
        training.train(1, 30.0)  # The first step is compiled.
        looks = training.train(3000, 0.05)
        assert training.taker.next_boundary() == NEVER
        assert len(looks) <= 10
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        "A resume at the end of an epoch will replay 14,400 batches of input. That takes at most about 12 min, the "
        "time of training on them."
    )


@pytest.mark.parametrize("at_most", [None, (1000, "at the end of training")])
def test_a_short_replay_is_no_news(at_most: Any, caplog: pytest.LogCaptureFixture) -> None:
    cost = ReplayCost(lambda: at_most)
    due = [cost.boundary(entered, entered * 0.05, 1) for entered in (1, 2, 18, 34, 66, 130)]
    assert due == [2, 18, 34, 66, 130, NEVER]
    assert not caplog.records


def test_times_are_spoken_in_one_unit() -> None:
    times = {61.0: "61 s", 720.0: "12 min", 7199.0: "120 min", 7200.0: "2 h", 90e3: "25 h", 200e3: "2 days"}
    assert {seconds: spoken(seconds) for seconds in times} == times
