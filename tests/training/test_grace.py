"""The reserve of the grace countdown, and countdowns of whole fits on a clock that is simulated."""

from __future__ import annotations

import random

import pytest

from keras_preempt.notices import Notice
from keras_preempt.training.grace import has_room, last_call_at, reserve, too_late
from tests.training.grace_simulator import Fit


def test_reserve_covers_a_save_and_a_step_twice_as_slow_as_any_seen() -> None:
    assert reserve(10.0, 2.0, 1.0, margin=0.5) == 20.0 + 4.0 + 1.0 + 0.5
    for wrong in ((-1.0, 0.0, 0.0), (0.0, float("nan"), 0.0), (0.0, 0.0, float("inf"))):
        with pytest.raises(ValueError, match="Expected finite seconds"):
            reserve(*wrong)


def test_room_means_three_times_what_is_measured_and_the_margin_once() -> None:
    assert has_room(127.1, 100.0, 10.0, margin=1.5)
    assert not has_room(127.0, 100.0, 10.0, margin=1.5)


def test_the_last_call_leaves_the_reserve() -> None:
    assert last_call_at(150.0, 20.0) == 130.0


def test_a_step_that_ends_after_the_deadline_is_too_late_by_so_much() -> None:
    assert too_late(110.0, 100.0, save_seconds=4.0, step_seconds=9.0) == 3.0
    assert too_late(110.0, 100.0, save_seconds=4.0, step_seconds=6.0) == 0.0


@pytest.mark.parametrize("seed", range(400))
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


def test_of_five_seconds_half_are_used_with_small_steps_and_saves() -> None:
    for seed in range(20):
        fit = Fit(random.Random(seed), step=0.05, save=0.05, slow_downs=True, measured=False)
        fit.train_for(60)
        began = fit.now
        fit.notify(Notice("gce", "maintenance", began, began + 5))
        assert fit.run_to_the_end() <= began + 5
        assert (fit.last_step_ended - began) / 5 >= 0.5


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
