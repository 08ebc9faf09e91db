"""How the speed of a fit is measured, on a clock that the test moves."""

from __future__ import annotations

import pytest

from keras_preempt.agreement import grace
from keras_preempt.training.pace import FIRST_ALIGNMENT, RECENT, SAVE_RATE, Pace


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_stretch_of_many_boundaries_counts_by_its_mean(clock: Clock) -> None:
    pace = Pace(clock)
    pace.leave(0)
    clock.now += 50
    pace.enter(100)
    assert pace.slowest(100) == 0.5


def test_the_slowest_recent_step_counts_and_one_long_ago_does_not(clock: Clock) -> None:
    pace = Pace(clock)
    pace.leave(0)
    slow_first = [9.0] + [1.0] * (RECENT - 1)
    slower = []
    for number, seconds in enumerate(slow_first, start=1):
        clock.now += seconds
        slower.append(pace.enter(number))
        pace.leave(number)
    assert slower == [True] + [False] * (RECENT - 1)
    assert pace.slowest(RECENT) == 9.0
    clock.now += 1.0
    pace.enter(RECENT + 1)
    assert pace.slowest(RECENT + 1) == 1.0


def test_what_is_done_at_a_boundary_is_no_part_of_a_step(clock: Clock) -> None:
    pace = Pace(clock)
    pace.leave(0)
    clock.now += 1
    pace.enter(1)
    clock.now += 100  # A save.
    pace.leave(1)
    assert pace.slowest(1) == 1.0


def test_a_step_in_flight_is_as_slow_as_it_is_by_now(clock: Clock) -> None:
    pace = Pace(clock)
    pace.leave(0)
    clock.now += 7
    assert pace.slowest(0) == 7.0


def test_the_callbacks_at_the_end_of_an_epoch_count_as_a_step(clock: Clock) -> None:
    pace = Pace(clock)
    pace.paused(12.0)
    assert pace.slowest(0) == 12.0


def test_a_save_is_expected_by_its_size_until_one_was_measured(clock: Clock) -> None:
    pace = Pace(clock)
    pace.to_save = int(3 * SAVE_RATE)
    assert pace.save_seconds == 3.0
    pace.save_began()
    clock.now += 5
    assert pace.save_seconds == 5.0
    pace.saved(None)  # It failed, and says nothing.
    assert pace.save_seconds == 3.0
    pace.saved(0.5)
    pace.saved(0.25)
    assert pace.save_seconds == 0.5


def test_the_reserve_is_made_of_what_was_measured(clock: Clock) -> None:
    pace = Pace(clock)
    pace.saved(2.0)
    pace.paused(3.0)
    assert pace.reserve(0) == grace.reserve(2.0, 3.0, FIRST_ALIGNMENT)
    pace.aligned(0.5)
    assert pace.reserve(0) == grace.reserve(2.0, 3.0, 0.5)


def test_a_snapshot_may_come_between_any_two_boundaries_and_displaces_no_pause(clock: Clock) -> None:
    pace = Pace(clock)
    pace.leave(0)
    clock.now += 1.0
    pace.enter(1)
    pace.paused(7.0)
    for seconds in [0.1] * 20 + [0.5]:
        pace.snapshot_taken(seconds)
    assert pace.slowest(1) == 7.5
