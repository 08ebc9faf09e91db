"""What holds in every interleaving of small clusters, and in many random schedules of large ones."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import pytest

from keras_preempt.agreement.messages import Kind
from tests.agreement.alignment_cluster import Cluster, Mutant, Violation
from tests.agreement.explorer import explore
from tests.agreement.schedules import Result, Schedule, random_schedule
from tests.agreement.simulator import simulate

LOCKSTEP = pytest.mark.parametrize("lockstep", [False, True], ids=["free", "lockstep"])


def outcomes(endings: dict[tuple[str, ...], int]) -> set[frozenset[str]]:
    return {frozenset(ending) for ending in endings}


@LOCKSTEP
def test_two_workers_all_act_at_one_boundary_or_all_finish(lockstep: bool) -> None:
    found = explore(Cluster(2, 5, lockstep))
    assert outcomes(found.endings) == {frozenset({"LEFT"}), frozenset({"FINISHED"})}
    assert found.rounds == 1
    # At each of the boundaries 1 to 5 some execution stops; the last one is for finishing.
    assert found.endings == {("LEFT", "LEFT"): 5, ("FINISHED", "FINISHED"): 1}


@LOCKSTEP
def test_three_workers_all_act_at_one_boundary_or_all_finish(lockstep: bool) -> None:
    found = explore(Cluster(3, 3, lockstep, late_notices=False, reduced=not lockstep))
    assert found.endings == {("LEFT",) * 3: 3, ("FINISHED",) * 3: 1}


@LOCKSTEP
def test_nobody_under_notice_means_all_finish(lockstep: bool) -> None:
    assert set(explore(Cluster(3, 2, lockstep, notified=frozenset())).endings) == {("FINISHED",) * 3}


@LOCKSTEP
@pytest.mark.parametrize("death", ["worker", "leader", "raise"])
def test_two_workers_never_hang_when_one_is_gone(
    lockstep: bool, death: Literal["worker", "leader", "raise"]
) -> None:
    found = explore(Cluster(2, 5, lockstep, death))
    # Both still agree where nothing happened to anyone, and a survivor that knew its plan carried it out.
    gone = {"DEAD", "RAISED"}
    survivors = {name for ending in found.endings for name in ending if gone & set(ending)} - gone
    assert survivors == {"LEFT", "FINISHED", "ALONE"}
    assert {("LEFT", "LEFT"), ("FINISHED", "FINISHED")} <= set(found.endings)


@LOCKSTEP
def test_three_workers_never_hang_or_part_when_one_dies(lockstep: bool) -> None:
    # Workers 0 and 1 are interchangeable, so notice to 1 adds nothing that notice to 0 does not show.
    notified = None if lockstep else frozenset({0, 2})
    found = explore(Cluster(3, 3, lockstep, "worker", notified=notified, late_notices=False, reduced=True))
    assert {("LEFT", "LEFT", "DEAD"), ("FINISHED", "FINISHED", "DEAD")} <= set(found.endings)
    assert all(first == second for first, second, _ in found.endings)


@pytest.mark.parametrize("death", ["leader", "raise"])
def test_three_workers_in_lockstep_never_hang_without_leader_or_after_an_error(
    death: Literal["leader", "raise"],
) -> None:
    found = explore(Cluster(3, 3, True, death, late_notices=False))
    assert {("LEFT",) * 3, ("FINISHED",) * 3} <= set(found.endings)


@LOCKSTEP
def test_plan_or_abort_is_decided_once_even_if_waits_end_at_any_time(lockstep: bool) -> None:
    found = explore(Cluster(2, 4, lockstep, "worker", "none", late_notices=False))
    assert found.rounds > 2
    assert ("ALONE", "FINISHED") not in found.endings
    assert ("LEFT", "LEFT") in found.endings


def test_three_workers_decide_once_even_if_waits_end_at_any_time() -> None:
    cluster = Cluster(3, 1, True, "", "none", notified=frozenset({0}), late_notices=False, reduced=True)
    assert {len(ending) for ending in outcomes(explore(cluster).endings)} == {1}


@LOCKSTEP
def test_rounds_that_go_on_are_followed_by_rounds_that_agree(lockstep: bool) -> None:
    found = explore(Cluster(2, 4, lockstep, goes_on=2, late_notices=False))
    assert found.rounds == 3
    assert set(found.endings) == {("LEFT", "LEFT"), ("FINISHED", "FINISHED")}


@LOCKSTEP
@pytest.mark.parametrize("death", ["", "worker"])
def test_leaving_out_orders_that_commute_changes_no_ending(
    lockstep: bool, death: Literal["", "worker"]
) -> None:
    whole = explore(Cluster(2, 4, lockstep, death))
    reduced = explore(Cluster(2, 4, lockstep, death, reduced=True))
    assert reduced.endings == whole.endings
    assert reduced.states < whole.states


@LOCKSTEP
@pytest.mark.parametrize("reduced", [False, True], ids=["whole", "reduced"])
@pytest.mark.parametrize(
    ("mutant", "shows"),
    [
        ("no last boundary rule", "stuck"),
        ("cleared on release", "passes boundary"),
        ("read before set", "beyond it"),
        ("torn read", "beyond it"),
    ],
)
def test_explorer_finds_what_each_rule_is_for(
    mutant: Mutant, shows: str, reduced: bool, lockstep: bool
) -> None:
    with pytest.raises(Violation, match=f"(?s){shows}.*after: 0 gets notice"):
        explore(Cluster(2, 5, lockstep, reduced=reduced, mutant=mutant))


# Random schedules.


def check(schedule: Schedule, result: Result) -> None:
    """Everyone ended; who acted in a round acted at one boundary; without deaths all did the same."""
    assert "" not in result.ended, f"stuck: {schedule}"
    for number, plan in result.plans.items():
        at = {acted[number] for acted in result.acted if number in acted}
        assert len(at) <= 1, schedule
        # At the last boundary it may be below the target.
        assert all(boundary == min(plan.target, schedule.steps + 1) for boundary in at), schedule
        assert plan.abort is None or not at, schedule
        if schedule.lockstep and schedule.delay < 0.01 and plan.abort is None:
            # The step in flight, and one more only where the call was under way as it ended.
            assert plan.target <= result.entered_at_call[number] + 2, schedule
    aborted = any(plan.abort for plan in result.plans.values())
    if not schedule.deaths:
        assert len(set(result.ended)) == 1, schedule
        if not aborted:
            assert set(result.ended) <= {"left", "finished"}, schedule
            rounds = [sorted(acted.items()) for acted in result.acted]
            assert all(acted == rounds[0] for acted in rounds), schedule


@pytest.mark.parametrize(
    "seeds", [range(2_000), pytest.param(range(10_000), marks=pytest.mark.chaos)], ids=len
)
def test_random_schedules_end_in_agreement(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        schedule = random_schedule(seed)
        result = simulate(schedule)
        check(schedule, result)
        seen.update({*result.ended})
        seen["rounds that went on"] += any(len(acted) > 1 for acted in result.acted)
        kinds = {plan.kind for plan in result.plans.values() if plan.abort is None}
        seen["counted down"] += Kind.DEADLINE in kinds
        seen["withdrawn in time"] += bool(schedule.withdrawals) and kinds == {Kind.FINISHED}
        seen["aborted"] += any(plan.abort is not None for plan in result.plans.values())
        seen["large"] += schedule.members == 64
    # Each kind of ending was really exercised.
    wanted = (
        *("left", "finished", "alone", "raised", "dead", "large"),
        *("rounds that went on", "counted down", "withdrawn in time", "aborted"),
    )
    assert all(seen[kind] >= len(seeds) // 100 for kind in wanted), seen


def test_schedule_gives_the_same_result_again() -> None:
    assert simulate(random_schedule(1234)) == simulate(random_schedule(1234))


def test_4096_members_agree_with_two_under_notice() -> None:
    schedule = Schedule(1, 4096, 3, True, notices=((7, 1.3, 0.0), (4000, 1.3, 0.0)))
    result = simulate(schedule)
    check(schedule, result)
    assert set(result.ended) == {"left"}
    (plan,) = result.plans.values()
    assert set(plan.doomed) <= {7, 4000}
    assert len(plan.writers) + len(plan.doomed) == 4096
