from __future__ import annotations

import json

import pytest

from keras_preempt.cli.drill.plan import FitSpan, Moment, NoSuchMoment, RunShape, plan_preemptions

SHAPE = RunShape(20, validations=[(5, 3), (10, 3), (15, 3)], saves=[4, 8, 12])
STANDS_SELDOM = RunShape(20, boundaries=[0, 4, 8, 12, 16])


def test_a_seed_gives_the_same_plan_again_and_another_seed_another():
    assert plan_preemptions(1, 3, RunShape(1000), 2) == plan_preemptions(1, 3, RunShape(1000), 2)
    assert plan_preemptions(1, 3, RunShape(1000), 2) != plan_preemptions(2, 3, RunShape(1000), 2)


@pytest.mark.parametrize("seed", range(50))
def test_steps_are_distinct_sorted_and_within_the_run(seed):
    plan = plan_preemptions(seed, 4, RunShape(6), 3)
    steps = [preemption.step for preemption in plan]
    assert steps == sorted(set(steps))
    assert 1 <= steps[0] <= steps[-1] <= 5
    assert all(0 <= preemption.member < 3 for preemption in plan)


def test_every_member_and_every_step_can_be_chosen():
    plans = [plan_preemptions(seed, 1, RunShape(4), 2)[0] for seed in range(100)]
    assert {(p.member, p.step) for p in plans} == {(m, s) for m in (0, 1) for s in (1, 2, 3)}


@pytest.mark.parametrize("seed", range(20))
def test_drawn_steps_are_none_of_the_chosen_ones_and_all_are_in_the_order_of_the_run(seed):
    moments = [Moment("validation"), Moment("step", 10), Moment("saving", 3), Moment("leaving", 10)]
    plan = plan_preemptions(seed, 15, SHAPE, 2, moments)
    assert [p.step for p in plan] == sorted(p.step for p in plan)
    assert [p.step for p in plan if p.at == "train"].count(10) == 1
    at_ten = [p.at for p in plan if p.step == 10]
    assert at_ten == ["train", "leaving"]


@pytest.mark.parametrize(
    ("shape", "moment", "at", "step", "batch"),
    [
        (SHAPE, Moment("step", 19), "train", 19, 0),
        (SHAPE, Moment("validation"), "validation", 5, 2),
        (SHAPE, Moment("validation", 3), "validation", 15, 2),
        (SHAPE, Moment("saving"), "saving", 8, 0),
        (SHAPE, Moment("saving", 1), "saving", 4, 0),
        (SHAPE, Moment("leaving", 7), "leaving", 7, 0),
        # The only save is taken where there is no second.
        (RunShape(20, saves=[4]), Moment("saving"), "saving", 4, 0),
        # Of the steps before which training stands at a boundary, the next.
        (STANDS_SELDOM, Moment("step", 9), "train", 12, 0),
    ],
)
def test_a_moment_is_found_in_the_run(shape, moment, at, step, batch):
    (found,) = plan_preemptions(1, 0, shape, 1, [moment])
    assert (found.at, found.step, found.batch) == (at, step, batch)


@pytest.mark.parametrize(
    ("drawn", "shape", "moments", "message"),
    [
        (0, SHAPE, [Moment("step", 20)], "lies beyond the end"),
        (0, SHAPE, [Moment("leaving", 20)], "lies beyond the end"),
        (0, SHAPE, [Moment("validation", 4)], "the run has 3 validations. Choose a number from 1 to 3"),
        (0, SHAPE, [Moment("saving", 4)], "the run has 3 saves"),
        (0, STANDS_SELDOM, [Moment("step", 17)], "Choose a step from 1 to 16"),
        (3, RunShape(3), [], "at least 4 training steps for --preempt 3"),
        (19, SHAPE, [Moment("step", 3)], "at least 21 training steps for --preempt 19"),
    ],
)
def test_moments_that_the_run_does_not_have_are_refused_with_what_it_has(drawn, shape, moments, message):
    with pytest.raises(NoSuchMoment, match=message):
        plan_preemptions(1, drawn, shape, 2, moments)


def test_a_worker_gets_it_as_json():
    (preemption,) = plan_preemptions(0, 1, RunShape(2), 1)
    assert json.loads(preemption.to_json()) == {
        **{"member": 0, "step": 1, "at": "train", "batch": 0, "signal": "SIGTERM", "kill": False},
    }
    (other,) = plan_preemptions(0, 0, SHAPE, 1, [Moment("validation")], "SIGUSR1", True)
    assert json.loads(other.to_json("pipe")) == {
        **{"member": 0, "step": 5, "at": "validation", "batch": 2},
        **{"signal": "SIGUSR1", "kill": True, "tell": "pipe", "outside": True},
    }


FITS = [FitSpan(1, "a", 0, 10), FitSpan(2, "b", 10, 30, began_at=10), FitSpan(3, "c", 30, 40)]


@pytest.mark.parametrize(
    ("moment", "fit", "step"),
    [
        (Moment("step", 9), "a", 9),
        (Moment("step", 10), "b", 10),
        (Moment("step", 35), "c", 5),
        (Moment("validation", 1), "a", 10),
        (Moment("validation", 2), "b", 30),
        (Moment("saving", 1), "b", 20),
        (Moment("leaving", 30), "c", 0),
    ],
)
def test_a_moment_lies_in_a_fit_and_is_given_in_steps_of_its_model(moment, fit, step):
    shape = RunShape(40, validations=[(10, 3), (30, 3)], saves=[20, 25], fits=FITS)
    (found,) = plan_preemptions(1, 0, shape, 1, [moment])
    told = json.loads(found.to_json())
    assert (told["fit"], told["step"]) == (fit, step)


def test_only_steps_before_which_training_stands_at_a_boundary_are_drawn():
    steps = {plan_preemptions(seed, 1, STANDS_SELDOM, 1)[0].step for seed in range(50)}
    assert steps == {4, 8, 12, 16}
