"""What holds in every interleaving of small clusters, and in many random schedules of large ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Literal

import pytest

from keras_preempt.agreement import member
from keras_preempt.agreement.messages import Kind
from tests.agreement.alignment_cluster import Cluster, Mutant, Violation
from tests.agreement.explorer import explore
from tests.agreement.mutations import MUTATIONS, Mutation
from tests.agreement.schedules import Result, Schedule, random_schedule
from tests.agreement.simulator import simulate

LONG = pytest.mark.chaos
LOCKSTEP = pytest.mark.parametrize("lockstep", [False, True], ids=["free", "lockstep"])
MOSTLY_FREE = pytest.mark.parametrize(
    "lockstep", [False, pytest.param(True, marks=LONG)], ids=["free", "lockstep"]
)
MOSTLY_LOCKSTEP = pytest.mark.parametrize(
    "lockstep", [pytest.param(False, marks=LONG), True], ids=["free", "lockstep"]
)


@pytest.fixture
def one_round_per_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further rounds after an aborted one are like that one."""
    monkeypatch.setattr(member, "ROUNDS_PER_REASON", 1)


ONE_ROUND = pytest.mark.usefixtures("one_round_per_reason")
Death = Literal["", "worker", "leader", "raise"]


@MOSTLY_LOCKSTEP
def test_two_workers_all_act_at_one_boundary_or_all_finish(lockstep: bool) -> None:
    found = explore(Cluster(2, 5, lockstep))
    assert found.rounds == 1
    # At each of the boundaries 1 to 5 some execution stops; the last one is for finishing.
    assert found.endings == {("LEFT", "LEFT"): 5, ("FINISHED", "FINISHED"): 1}


@pytest.mark.parametrize("steps", [2, pytest.param(3, marks=LONG)])
def test_three_workers_all_act_at_one_boundary_or_all_finish(steps: int) -> None:
    found = explore(Cluster(3, steps, True, reduced=True))
    assert found.endings == {("LEFT",) * 3: steps, ("FINISHED",) * 3: 1}


@LOCKSTEP
def test_nobody_under_notice_means_all_finish(lockstep: bool) -> None:
    found = explore(Cluster(3, 2, lockstep, scripts=(), reduced=not lockstep))
    assert set(found.endings) == {("FINISHED",) * 3}


@LOCKSTEP
@pytest.mark.parametrize(
    ("death", "steps", "rounds"),
    [
        *[("worker", 2, 1), ("leader", 2, 1), ("raise", 2, 1)],
        *(pytest.param(*each, marks=LONG) for each in [("worker", 5, 3), ("leader", 5, 3), ("raise", 3, 3)]),
    ],
)
def test_two_workers_never_hang_when_one_is_gone(
    lockstep: bool, death: Death, steps: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "ROUNDS_PER_REASON", rounds)
    found = explore(Cluster(2, steps, lockstep, death))
    # Both still agree where nothing happened to anyone, and a survivor that knew its plan carried it out.
    gone = {"DEAD", "RAISED"}
    survivors = {name for ending in found.endings for name in ending if gone & set(ending)} - gone
    assert survivors == {"LEFT", "FINISHED", "ALONE"}
    assert {("LEFT", "LEFT"), ("FINISHED", "FINISHED")} <= set(found.endings)


@LONG
@pytest.mark.timeout(3600)  # Six million states.
@pytest.mark.parametrize("death", ["leader", "raise"])
@ONE_ROUND
def test_three_workers_never_hang_when_the_leader_is_gone_or_one_raises(death: Death) -> None:
    found = explore(Cluster(3, 3, True, death, reduced=True))
    assert {("LEFT",) * 3, ("FINISHED",) * 3} <= set(found.endings)
    both = {ending[1:] if death == "leader" else ending[:2] for ending in found.endings}
    # The two others end alike, or each by itself where coordination is gone: one may know the plan, one may not.
    alike = {(name, name) for name in ("LEFT", "FINISHED", "ALONE", "RAISED")}
    apart = {("LEFT", "RAISED"), ("RAISED", "LEFT"), ("FINISHED", "ALONE"), ("ALONE", "FINISHED")}
    assert both == (alike | apart if death == "leader" else alike)


# Rounds that are aborted although nobody is gone: a worker was slower than the others' patience.

ABORTED = {("LEFT", "LEFT"), ("FINISHED", "FINISHED"), ("ALONE", "ALONE")}
"""Where every round was aborted that was called at the end, training ends without agreement: for all, or for nobody."""


@LOCKSTEP
@pytest.mark.parametrize("steps", [1, pytest.param(2, marks=LONG)])
@ONE_ROUND
def test_two_workers_all_act_or_none_does_when_nobody_has_patience(steps: int, lockstep: bool) -> None:
    assert set(explore(Cluster(2, steps, lockstep, patience="none", scripts=("n",))).endings) == ABORTED


def test_two_workers_end_alike_after_as_many_aborted_rounds_as_a_fit_allows() -> None:
    found = explore(Cluster(2, 1, False, patience="none", scripts=(), reduced=True))
    assert set(found.endings) == ABORTED - {("LEFT", "LEFT")}
    assert found.rounds == 2 * member.ROUNDS_PER_REASON + 1


@LONG
@LOCKSTEP
@pytest.mark.parametrize("scripts", [("n", "n"), ("rn",), ("sn", "s"), ("i", "r"), ("pr",)], ids="-".join)
@ONE_ROUND
def test_two_workers_agree_whatever_they_are_told_when_nobody_has_patience(
    scripts: tuple[str, ...], lockstep: bool
) -> None:
    found = explore(Cluster(2, 3, lockstep, patience="none", scripts=scripts, reduced=True))
    assert set(found.endings) == ABORTED


@LONG
@LOCKSTEP
def test_two_workers_agree_after_as_many_aborted_rounds_as_a_notice_may_call(lockstep: bool) -> None:
    found = explore(Cluster(2, 1, lockstep, patience="none", scripts=("n",), reduced=True))
    assert set(found.endings) == ABORTED


@LONG
@pytest.mark.timeout(3600)  # Ten million states.
@pytest.mark.parametrize("scripts", [(), ("n",)], ids=["undisturbed", "n"])
@ONE_ROUND
def test_three_workers_all_act_or_none_does_when_nobody_has_patience(scripts: tuple[str, ...]) -> None:
    found = explore(Cluster(3, 1, True, patience="none", scripts=scripts, reduced=True))
    left = {frozenset({"LEFT"})} if scripts else set()
    assert set(map(frozenset, found.endings)) == left | {frozenset({"FINISHED"}), frozenset({"ALONE"})}


# With time left: countdowns, notices that are withdrawn, second notices.


@MOSTLY_LOCKSTEP
@pytest.mark.parametrize(
    "scripts",
    [
        *(("rn", ""), ("rw", ""), ("rnw", ""), ("r", "n"), ("sn", "s"), ("pr", ""), ("h", "n")),
        *(("si", ""), ("ri", ""), ("i", "r"), ("pi", "i")),
    ],
    ids="-".join,
)
def test_two_workers_agree_whatever_they_are_told(scripts: tuple[str, str], lockstep: bool) -> None:
    """And each notice is served or counted down for as long as it stands: the model checks that in every state."""
    found = explore(Cluster(2, 2, lockstep, scripts=scripts, reduced=True))
    withdrawn = "w" in scripts[0] and "n" not in scripts[0]
    assert ("FINISHED", "FINISHED") in found.endings
    assert withdrawn or ("LEFT", "LEFT") in found.endings
    assert found.rounds > 1 or scripts in (("h", "n"), ("sn", "s"), ("si", ""))


TOLD = [("rn", "n"), ("rw", "n"), ("rnw", "r"), ("rwn", "r"), ("sn", "sn"), ("rn", "p")]


@LONG
@LOCKSTEP
@pytest.mark.parametrize("death", ["", "worker"])
@pytest.mark.parametrize("scripts", TOLD, ids="-".join)
@ONE_ROUND
def test_two_workers_of_five_steps_agree_whatever_they_are_told(
    scripts: tuple[str, str], death: Death, lockstep: bool
) -> None:
    found = explore(Cluster(2, 5, lockstep, death, scripts=scripts, reduced=True))
    assert {("LEFT", "LEFT"), ("FINISHED", "FINISHED")} <= set(found.endings)


@LONG
@pytest.mark.parametrize("death", ["", "worker"])
@pytest.mark.parametrize(
    "scripts", [("rn",), ("rw", "n"), ("rwn",), ("rnw",), ("r", "r"), ("sn", "n")], ids="-".join
)
@ONE_ROUND
def test_three_workers_of_three_steps_agree_whatever_they_are_told(
    scripts: tuple[str, ...], death: Death
) -> None:
    found = explore(Cluster(3, 3, True, death, scripts=scripts, reduced=True))
    assert ("FINISHED",) * 3 in found.endings


def compared(cluster: Cluster) -> None:
    """Explores `cluster` whole, and without the orders that commute."""
    whole, reduced = explore(cluster), explore(replace(cluster, reduced=True))
    assert reduced.endings == whole.endings
    assert reduced.states < whole.states


@MOSTLY_LOCKSTEP
@pytest.mark.parametrize("death", ["", "worker", "leader", "raise"])
@pytest.mark.parametrize(
    ("scripts", "steps"),
    [
        (("n", "n"), 1),
        *(pytest.param(each, 2, marks=LONG) for each in [("n", "n"), ("rn", ""), ("s", "n")]),
    ],
)
@ONE_ROUND
def test_leaving_out_orders_that_commute_changes_no_ending(
    scripts: tuple[str, str], steps: int, death: Death, lockstep: bool
) -> None:
    compared(Cluster(2, steps, lockstep, death, scripts=scripts))


@pytest.mark.parametrize("death", ["", *(pytest.param(each, marks=LONG) for each in ["leader", "raise"])])
@ONE_ROUND
def test_leaving_out_orders_that_commute_changes_no_ending_of_three_workers(death: Death) -> None:
    """Of two that are left when the leader dies, one may know the plan, and one may not."""
    compared(Cluster(3, 1, True, death, scripts=("n",)))


@LOCKSTEP
@pytest.mark.parametrize(
    "scripts", [("s",), *(pytest.param(each, marks=LONG) for each in [("n",), ("r",)])], ids="-".join
)
@ONE_ROUND
def test_leaving_out_orders_that_commute_changes_no_ending_of_aborted_rounds(
    scripts: tuple[str, ...], lockstep: bool
) -> None:
    compared(Cluster(2, 2, lockstep, patience="none", scripts=scripts))


# What each rule is for.


@MOSTLY_FREE
@pytest.mark.parametrize(
    ("mutation", "cluster", "shows"), MUTATIONS, ids=[mutation.__name__ for mutation, _, _ in MUTATIONS]
)
def test_the_explorer_finds_every_rule_that_is_broken_in_the_code_of_a_fit(
    mutation: Mutation, cluster: Cluster, shows: str, lockstep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    # Where steps are in lockstep, who waits for one that has left is stuck instead of going too far.
    with pytest.raises(Violation, match=f"(?s)({shows}{'|stuck' * lockstep}).*after: "):
        explore(replace(cluster, lockstep=lockstep))


@LOCKSTEP
@pytest.mark.parametrize(
    ("mutant", "free", "in_lockstep"),
    [
        ("cleared on release", "passes boundary", "passes boundary"),
        ("read before set", "beyond it", "stuck"),  # It waits for one that has left.
        ("torn read", "beyond it", "beyond it"),
    ],
)
def test_the_explorer_finds_accesses_of_threads_in_another_order(
    mutant: Mutant, free: str, in_lockstep: str, lockstep: bool
) -> None:
    with pytest.raises(Violation, match=f"(?s){in_lockstep if lockstep else free}.*after: "):
        explore(Cluster(2, 5, lockstep, mutant=mutant))


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


@pytest.mark.parametrize("seeds", [range(1_000), pytest.param(range(10_000), marks=LONG)], ids=len)
def test_random_schedules_end_in_agreement(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for schedule in map(random_schedule, seeds):
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
