"""How the speed of a fit is measured, and the countdown of whole fits, on a clock that is simulated."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from keras_preempt import PreemptionCallback
from keras_preempt.agreement import grace
from keras_preempt.notices import Notice
from keras_preempt.process import environment
from keras_preempt.training.save.pace import FIRST_ALIGNMENT, RECENT, SAVE_RATE, Pace
from tests import fits
from tests.cluster.noticed_fit import STEPS, Model, make_data
from tests.training.grace_simulator import Clock, Fit


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pace(clock: Clock) -> Pace:
    pace = Pace(clock)
    pace.leave(0)
    return pace


def test_a_stretch_of_many_boundaries_counts_by_its_mean(clock: Clock, pace: Pace) -> None:
    clock.now += 50
    pace.enter(100)
    assert pace.slowest(100) == 0.5


def test_the_slowest_recent_step_counts_and_one_long_ago_does_not(clock: Clock, pace: Pace) -> None:
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


@pytest.mark.parametrize("under_notice", [False, True])
def test_the_first_step_is_traced_and_compiled_and_counts_only_under_notice(
    under_notice: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if under_notice:  # From the beginning, and the fit is over long before the end.
        monkeypatch.setenv(environment.END_TIME, str(time.time() + 60))
        monkeypatch.setattr(grace, "SHORTEST_LEAD", 120.0)
    ours = PreemptionCallback(tmp_path)
    slowest = []

    def step(batch: int, logs: object) -> None:
        if batch == 0:
            time.sleep(1.0)
        elif batch == STEPS - 1:
            assert ours._fit is not None
            slowest.append(ours._fit.runtime.pace.slowest(ours._fit.runtime.entered))

    model = Model()
    model.begin_anew()
    data, doing = make_data(STEPS), fits.Doing(on_train_batch_begin=step)
    model.keras.fit(data, epochs=2, shuffle=False, verbose=0, callbacks=[ours, doing])
    first, second = slowest
    assert (first >= 1.0) == under_notice
    assert under_notice or first < 1.0 / STEPS <= second, "the second epoch has measured nothing"


def test_what_is_done_at_a_boundary_is_no_part_of_a_step(clock: Clock, pace: Pace) -> None:
    clock.now += 1
    pace.enter(1)
    clock.now += 100  # A save.
    pace.leave(1)
    assert pace.slowest(1) == 1.0


def test_a_step_in_flight_is_as_slow_as_it_is_by_now_and_the_end_of_an_epoch_counts_as_a_step(
    clock: Clock, pace: Pace
) -> None:
    clock.now += 7
    assert pace.slowest(0) == 7.0
    pace.paused(12.0)
    assert pace.slowest(0) == 12.0


def test_a_save_is_expected_by_its_size_until_one_was_measured(clock: Clock, pace: Pace) -> None:
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


def test_the_reserve_is_made_of_what_was_measured(clock: Clock, pace: Pace) -> None:
    pace.saved(2.0)
    pace.paused(3.0)
    assert pace.reserve(0) == grace.reserve(2.0, 3.0, FIRST_ALIGNMENT)
    pace.aligned(0.5)
    assert pace.reserve(0) == grace.reserve(2.0, 3.0, 0.5)


def test_a_snapshot_may_come_between_two_boundaries_and_displaces_no_pause(clock: Clock, pace: Pace) -> None:
    clock.now += 1.0
    pace.enter(1)
    pace.paused(7.0)
    for seconds in [0.1] * 20 + [0.5]:
        pace.snapshot_taken(seconds)
    assert pace.slowest(1) == 7.5


KINDS = (0, 1, 2, 4, 5, 6, 7, 9, 10, 11, 12, 15, 16, 20, 22, 24, 26, 29, 30, 37)
"""Seeds with and without room for two saves, with a save measured before and none, and with steps longer than it."""


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=() if n in KINDS else pytest.mark.chaos) for n in range(400)]
)
def test_no_countdown_ends_after_its_deadline(seed: int) -> None:
    choose = random.Random(seed)
    step = 10 ** choose.uniform(-2, 0.7)
    save = 10 ** choose.uniform(-1.5, 1.2)
    fit = Fit(choose, step=step, save=save, slow_downs=True, measured=choose.random() < 0.5)
    fit.train_for(step * choose.uniform(5, 500))
    deadline = fit.now + min(10 ** choose.uniform(0, 3), 1500 * step)
    fit.notify(Notice("gce", "maintenance", fit.now, deadline))
    end = fit.run_to_the_end()
    if fit.had_room:
        assert end <= deadline
        assert fit.committed_steps == fit.steps > 0  # The last save has all that was trained.
    else:
        assert fit.steps_after_notice <= 1


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=() if n in KINDS else pytest.mark.chaos) for n in range(400)]
)
def test_no_fit_trains_beyond_its_time_limit(seed: int) -> None:
    """Also where a save takes up to four times as long as its size lets expect, until one was measured."""
    choose = random.Random(seed)
    step = 10 ** choose.uniform(-2, 0.7)
    save = 10 ** choose.uniform(-1.5, 1.2)
    expected = save / choose.uniform(1, 4)
    fit = Fit(choose, step=step, save=save, slow_downs=True, expected_save=expected)
    ends_at = fit.now + grace.lead(fit.reserve()) + choose.uniform(10, 100) * step
    end = fit.run_until(ends_at)
    assert fit.had_room
    assert end <= ends_at
    assert fit.committed_steps == fit.steps > 0


@pytest.mark.parametrize(("grace", "has_room"), [(4, False), (5, True)])
def test_of_five_seconds_half_are_used_with_small_steps_and_saves_and_of_four_none(
    grace: int, has_room: bool
) -> None:
    for seed in range(20):
        fit = Fit(random.Random(seed), step=0.05, save=0.05, slow_downs=True, measured=False)
        fit.train_for(60)
        began = fit.now
        fit.notify(Notice("gce", "maintenance", began, began + grace))
        assert fit.run_to_the_end() <= began + grace
        assert fit.had_room == has_room
        assert not has_room or (fit.last_step_ended - began) / grace >= 0.5
        assert fit.committed_steps == fit.steps


def test_nearly_all_of_thirty_seconds_is_used_with_steps_of_fifty_milliseconds() -> None:
    fit = Fit(random.Random(1), step=0.05, save=0.2, slow_downs=False)
    fit.train_for(60)
    began = fit.now
    fit.notify(Notice("gce", "maintenance", began, began + 30))
    fit.run_to_the_end()
    assert (fit.last_step_ended - began) / 30 >= 0.9


def test_a_later_notice_with_an_earlier_deadline_moves_the_last_call() -> None:
    fit = Fit(random.Random(2), step=0.1, save=0.5, slow_downs=False)
    fit.train_for(60)
    fit.notify(Notice("gce", "maintenance", fit.now, fit.now + 600))
    fit.train_for(10)
    deadline = fit.now + 60
    fit.notify(Notice("gce", "preempted", fit.now, deadline, id="another"))
    assert deadline - 10 < fit.run_to_the_end() <= deadline


def test_a_slow_first_save_makes_the_last_call_come_earlier() -> None:
    fit = Fit(random.Random(3), step=0.1, save=20.0, slow_downs=False, expected_save=0.1)
    fit.train_for(10)
    deadline = fit.now + 120
    fit.notify(Notice("gce", "maintenance", fit.now, deadline))
    assert fit.run_to_the_end() <= deadline
