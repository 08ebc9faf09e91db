"""Snapshots are taken as often as they are worth it, and cost at most their share of training."""

from __future__ import annotations

import random

import pytest

from keras_preempt.training.snapshot_schedule import SHARE, WORTH, SnapshotSchedule


class Training:
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
def test_no_stretch_is_longer_than_what_it_is_worth_or_what_a_snapshot_costs(
    step: float, cost: float
) -> None:
    training = Training(expected=cost)
    training.steps(int(400 / step), step, cost)
    wanted = max(WORTH, cost / SHARE)
    assert training.taken
    # A look comes at most one gap late: as many boundaries as the stretch before, which begins with single ones.
    assert max(training.stretches) <= 2 * wanted + step
    assert min(training.stretches) >= wanted - step
    assert training.spent <= SHARE * training.trained


def test_all_snapshots_together_take_no_more_than_their_share_even_if_each_takes_longer_than_expected() -> (
    None
):
    randomness = random.Random(5)
    training = Training(expected=0.001)
    for _ in range(3000):
        training.steps(1, randomness.choice([0.01, 0.1, 1.0]), randomness.expovariate(1 / 0.05))
        if training.taken and training.taken[-1] == training.trained:
            last = training.schedule.cost
            assert training.spent - last <= SHARE * training.trained + 1.0
    assert len(training.taken) > 20
    # Nobody knows what the next one takes; it is all that can be too much.
    assert training.spent <= SHARE * training.trained + 0.5


def test_one_that_takes_long_is_paid_for_before_the_next() -> None:
    training = Training(expected=0.001)
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


def test_few_boundaries_are_looked_at() -> None:
    training = Training(expected=0.001)
    training.steps(100_000, 0.001, 0.001)
    assert training.looks <= 6 * len(training.taken)


def test_after_a_slow_first_step_the_pace_is_found_again() -> None:
    training = Training(expected=0.001)
    training.steps(1, 20.0, 0.001)
    training.steps(5000, 0.001, 0.001)
    assert 5.0 / WORTH / 2 <= len(training.taken) <= 5.0 / WORTH + 2
