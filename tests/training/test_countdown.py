"""The countdown of whole fits: real runtimes with their threads, on a clock that is simulated."""

from __future__ import annotations

import random

import pytest

from keras_preempt.notices import Notice
from tests.training.grace_simulator import Fit


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


def test_four_seconds_are_one_save_at_once() -> None:
    for seed in range(20):
        fit = Fit(random.Random(seed), step=0.05, save=0.05, slow_downs=True, measured=False)
        fit.train_for(60)
        began = fit.now
        fit.notify(Notice("gce", "maintenance", began, began + 4))
        assert fit.run_to_the_end() <= began + 4
        assert not fit.had_room
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
