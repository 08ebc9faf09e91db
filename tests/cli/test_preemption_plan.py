from __future__ import annotations

import json

import pytest

from keras_preempt.cli.preemption_plan import plan_preemptions


def test_a_seed_gives_the_same_plan_again_and_another_seed_another():
    assert plan_preemptions(1, 3, 1000, 2) == plan_preemptions(1, 3, 1000, 2)
    assert plan_preemptions(1, 3, 1000, 2) != plan_preemptions(2, 3, 1000, 2)


@pytest.mark.parametrize("seed", range(50))
def test_steps_are_distinct_sorted_and_within_the_run(seed):
    plan = plan_preemptions(seed, 4, 6, 3)
    steps = [preemption.step for preemption in plan]
    assert steps == sorted(set(steps))
    assert 1 <= steps[0] <= steps[-1] <= 5
    assert all(0 <= preemption.member < 3 for preemption in plan)


def test_every_member_and_every_step_can_be_chosen():
    plans = [plan_preemptions(seed, 1, 4, 2)[0] for seed in range(100)]
    assert {(p.member, p.step) for p in plans} == {(m, s) for m in (0, 1) for s in (1, 2, 3)}


def test_a_run_too_short_for_the_preemptions_is_refused():
    with pytest.raises(ValueError, match="at least 4 training steps for --preempt 3"):
        plan_preemptions(0, 3, 3, 2)


def test_a_worker_gets_it_as_json():
    (preemption,) = plan_preemptions(0, 1, 2, 1)
    assert json.loads(preemption.to_json()) == {"member": 0, "step": 1}
