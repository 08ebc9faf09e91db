"""Alignment's functions one by one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_preempt.agreement.alignment import (
    TRANSITIONS,
    Decision,
    State,
    Trigger,
    abort_plan,
    answer,
    decide,
    make_plan,
    outcome,
    transition,
)
from keras_preempt.agreement.messages import At, Call, Kind, Plan, Position, ProtocolError, key

CALL = Call(1, Kind.PREEMPTED, "SIGTERM")
PLAN = Plan(4, Kind.PREEMPTED, (0,), (1,))
ABORT = abort_plan(CALL, "member 0 is silent")


def ats(*boundaries: int, doomed: tuple[int, ...] = ()) -> list[At]:
    return [At(i, boundary, None, i in doomed) for i, boundary in enumerate(boundaries)]


# The table.


@pytest.mark.parametrize(("state", "event"), itertools.product(State, Trigger))
def test_every_event_that_the_table_does_not_have_is_refused(state: State, event: Trigger) -> None:
    rows = [row for row in TRANSITIONS if (row.source, row.event) == (state, event)]
    if rows:
        assert [transition(state, event)] == rows
        return
    with pytest.raises(ProtocolError, match=f"Expected one of the events .*Received: '{event.value}'"):
        transition(state, event)


def test_table_has_one_transition_per_state_and_event_and_reaches_every_state_from_listening() -> None:
    assert len({(row.source, row.event) for row in TRANSITIONS}) == len(TRANSITIONS)
    reached = {State.LISTENING}
    for _ in State:
        reached |= {row.target for row in TRANSITIONS if row.source in reached}
    assert reached == set(State)


# Answers and plans.


def test_answer_is_where_the_thread_stands_or_the_next_boundary() -> None:
    here = Position(0, "train", 3)
    assert answer(2, 4, here, False) == At(2, 4, here, False)
    assert answer(2, 4, None, True) == At(2, 5, None, True)
    assert answer(0, 0, None, False).boundary == 1


@given(st.data(), st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=9))
def test_plan_targets_the_highest_answer_and_never_lets_the_doomed_write_for_survivors(
    data: st.DataObject, answered: list[tuple[int, bool]]
) -> None:
    answers = [At(i, boundary, None, doomed) for i, (boundary, doomed) in enumerate(answered)]
    members = range(len(answers))
    call = Call(data.draw(st.sampled_from(members)), data.draw(st.sampled_from(Kind)))
    plan = make_plan(call, data.draw(st.permutations(answers)), members)
    doomed = {at.member for at in answers if at.doomed}
    if call.kind is Kind.PREEMPTED:
        doomed.add(call.member)
    assert plan.target == max(at.boundary for at in answers)
    assert set(plan.doomed) == doomed
    assert set(plan.writers) == (set(members) - doomed or set(members))
    assert (plan.abort, plan.kind) == (None, call.kind)
    assert Plan.decode(plan.encode()) == plan


def test_members_that_disagree_about_the_program_abort_the_round_with_both_named() -> None:
    answers = [
        At(0, 5, Position(1, "train", 0), False),
        At(1, 6, None, False),
        At(2, 5, Position(0, "validation", 2, 40), False),
    ]
    why = make_plan(CALL, answers, (0, 1, 2)).abort
    assert why is not None
    where = ("epoch 1, train batch 0", "epoch 0, validation batch 2, step 40")
    for part in ("members 0 and 2", "boundary 5", *where):
        assert part in why


def test_positions_are_compared_only_where_both_are_known() -> None:
    known, unknown = Position(0, "train", 4, 4), Position(0, "train", 4)
    held = [At(0, 5, unknown, False), At(1, 5, known, False), At(2, 5, None, False)]
    assert make_plan(CALL, held, (0, 1, 2)).abort is None
    apart = [At(0, 5, known, False), At(1, 6, Position(0, "train", 5, 5), False)]
    assert make_plan(CALL, apart, (0, 1)).abort is None
    other = [At(0, 5, known, False), At(1, 5, Position(0, "train", 4, 3), False)]
    assert make_plan(CALL, other, (0, 1)).abort is not None
    late = [At(0, 5, None, False), At(1, 5, known, False), At(2, 5, Position(0, "train", 9), False)]
    assert "members 1 and 2" in str(make_plan(CALL, late, (0, 1, 2)).abort)


@pytest.mark.parametrize("answers", [ats(1), ats(1, 2, 3), [*ats(1), *ats(2)]])
def test_plan_needs_exactly_one_answer_from_each_member(answers: list[At]) -> None:
    with pytest.raises(ProtocolError, match=r"one answer from each of \[0, 1\]"):
        make_plan(CALL, answers, (0, 1))


# At a boundary.


def test_decision_holds_passes_or_acts() -> None:
    assert decide(3, None, False) is decide(9, None, True) is Decision.HOLD
    assert decide(3, PLAN, False) is Decision.PASS
    assert decide(4, PLAN, False) is Decision.ACT
    assert decide(3, PLAN, True) is Decision.ACT
    assert decide(4, ABORT, False) is decide(4, ABORT, True) is Decision.PASS


def test_everyone_finishes_at_the_last_boundary_whatever_was_called() -> None:
    goes_on = make_plan(Call(0, Kind.PERIODIC), ats(4, 3), (0, 1))
    roomy = make_plan(Call(0, Kind.PREEMPTED, goes_on=True), ats(4, 3), (0, 1))
    assert [outcome(plan, True) for plan in (PLAN, goes_on, roomy)] == [Trigger.FINISH] * 3
    assert [outcome(plan, False) for plan in (PLAN, goes_on, roomy)] == [Trigger.LEAVE, *[Trigger.ACTED] * 2]


def test_thread_beyond_the_target_is_an_error_unless_the_plan_is_an_abort() -> None:
    assert decide(9, ABORT, False) is Decision.PASS
    for last in (False, True):
        with pytest.raises(ProtocolError, match=r"act at boundary 4.*beyond it, at boundary 5"):
            decide(5, PLAN, last)


def test_keys_of_a_round_share_a_prefix() -> None:
    assert key(0, 2, "at", 1) == "keras_preempt/0/2/at/1"
    assert key(1, 0) == "keras_preempt/1/0"
