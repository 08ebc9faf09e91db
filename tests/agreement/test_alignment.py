"""Alignment's functions one by one, and the page that is generated from its table."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_preempt.agreement.alignment import (
    TRANSITIONS,
    At,
    Call,
    Decision,
    Event,
    Kind,
    Member,
    Plan,
    Position,
    ProtocolError,
    State,
    abort_plan,
    advance,
    answer,
    decide,
    finishing,
    held_decision,
    key,
    make_plan,
    outcome,
    overshot,
)

DIAGRAM = Path(__file__).parents[2] / "docs" / "alignment_diagram.py"
CALL = Call(1, Kind.PREEMPTED, "SIGTERM", 100.0)
PLAN = Plan(4, Kind.PREEMPTED, (0,), (1,))
ABORT = abort_plan(CALL, "member 0 is silent")


def ats(*boundaries: int, doomed: tuple[int, ...] = ()) -> list[At]:
    return [At(i, boundary, None, i in doomed) for i, boundary in enumerate(boundaries)]


def member(state: State, number: int = 0) -> Member:
    known = state in (State.ANSWERED, State.PLANNED, State.ACTING)
    planned = state in (State.PLANNED, State.ACTING)
    return Member(0, number, state, CALL if known else None, PLAN if planned else None)


def payload(event: Event) -> dict[str, Any]:
    if event is Event.CALL:
        return {"call": CALL}
    return {"plan": PLAN} if event is Event.PLAN else {}


# The table.


def test_table_has_one_transition_per_state_and_event() -> None:
    assert len({(row.source, row.event) for row in TRANSITIONS}) == len(TRANSITIONS)


@pytest.mark.parametrize(("state", "event"), itertools.product(State, Event))
def test_member_follows_the_table_and_refuses_every_other_event(state: State, event: Event) -> None:
    row = next((row for row in TRANSITIONS if (row.source, row.event) == (state, event)), None)
    before = member(state, number=3)
    if row is None:
        with pytest.raises(ProtocolError, match=f"Expected one of the events .*Received: '{event.value}'"):
            advance(before, event, **payload(event))
        return
    after = advance(before, event, **payload(event))
    assert after.state is row.target
    assert after.round == 3 + row.next_round
    if row.next_round:
        assert after == Member(0, 4)


def test_every_state_is_reached_from_listening() -> None:
    reached = {State.LISTENING}
    for _ in State:
        reached |= {row.target for row in TRANSITIONS if row.source in reached}
    assert reached == set(State)


def test_attention_stays_on_from_the_call_until_the_plan_is_carried_out() -> None:
    now, seen = Member(0), []
    for event in (Event.CALL, Event.PLAN, Event.REACHED, Event.ACTED):
        seen.append(now.attention)
        now = advance(now, event, **payload(event))
    assert seen == [False, True, True, True]
    assert not now.attention
    assert now.round == 1


def test_failed_call_and_aborted_plan_end_the_round_at_once() -> None:
    lost = advance(Member(0), Event.CALL, call=Call(1, Kind.FAILED, "ValueError"))
    assert (lost.state, lost.attention, lost.call) == (State.LOST, False, Call(1, Kind.FAILED, "ValueError"))
    assert advance(member(State.ANSWERED), Event.PLAN, plan=ABORT) == Member(0, 1)
    assert advance(member(State.ANSWERED), Event.ABORT) == Member(0, 1)


@pytest.mark.parametrize("state", [State.PLANNED, State.ACTING])
def test_known_plan_survives_the_loss_of_coordination(state: State) -> None:
    assert advance(member(state), Event.LOST) == member(state)


def test_event_without_its_message_is_refused() -> None:
    wrong: list[tuple[State, Event, dict[str, Any]]] = [
        (State.LISTENING, Event.CALL, {}),
        (State.ANSWERED, Event.PLAN, {}),
        (State.ANSWERED, Event.PLAN, {"call": CALL, "plan": PLAN}),
        (State.PLANNED, Event.REACHED, {"plan": PLAN}),
    ]
    for state, event, messages in wrong:
        with pytest.raises(ProtocolError, match="Expected"):
            advance(member(state), event, **messages)


def test_member_cannot_be_changed_in_place() -> None:
    with pytest.raises(FrozenInstanceError):
        Member(0).round = 1  # type: ignore[misc]


# Answers and plans.


def test_answer_is_where_the_thread_stands_or_the_next_boundary() -> None:
    here = Position(0, "train", 3)
    assert answer(2, 4, True, here, False) == At(2, 4, here, False)
    assert answer(2, 4, False, here, True) == At(2, 5, None, True)
    assert answer(0, 0, False, None, False).boundary == 1


@given(st.data(), st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=9))
def test_plan_targets_the_highest_answer_and_never_lets_the_doomed_write_for_survivors(
    data: st.DataObject, answered: list[tuple[int, bool]]
) -> None:
    answers = [At(i, boundary, None, doomed) for i, (boundary, doomed) in enumerate(answered)]
    members = range(len(answers))
    call = Call(data.draw(st.sampled_from(members)), data.draw(st.sampled_from([*Kind][:4])), "", 7.0)
    plan = make_plan(call, data.draw(st.permutations(answers)), members)
    doomed = {at.member for at in answers if at.doomed}
    if call.kind is Kind.PREEMPTED:
        doomed.add(call.member)
    assert plan.target == max(at.boundary for at in answers)
    assert set(plan.doomed) == doomed
    assert set(plan.writers) == (set(members) - doomed or set(members))
    assert (plan.abort, plan.deadline, plan.kind) == (None, 7.0, call.kind)
    assert Plan.decode(plan.encode()) == plan


def test_members_that_disagree_about_the_program_abort_the_round_with_both_named() -> None:
    answers = [
        At(0, 5, Position(1, "train", 0), False),
        At(1, 6, None, False),
        At(2, 5, Position(0, "validation", 2, 40), False),
    ]
    plan = make_plan(CALL, answers, (0, 1, 2))
    assert plan.abort is not None
    for part in (
        "members 0 and 2",
        "boundary 5",
        "epoch 1, train batch 0",
        "epoch 0, validation batch 2, step 40",
    ):
        assert part in plan.abort


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


def test_no_plan_follows_a_failed_call() -> None:
    with pytest.raises(ProtocolError, match="a call that a plan follows"):
        make_plan(Call(0, Kind.FAILED), ats(1), (0,))


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
    assert finishing(3, PLAN, True)
    assert not finishing(4, PLAN, False)
    assert not finishing(3, ABORT, True)
    assert [outcome(4, plan, True) for plan in (PLAN, goes_on, roomy)] == [Event.FINISH] * 3
    assert [outcome(4, plan, False) for plan in (PLAN, goes_on, roomy)] == [Event.LEAVE, *[Event.ACTED] * 2]


def test_thread_beyond_the_target_is_an_error() -> None:
    overshot(4, PLAN)
    overshot(9, ABORT)
    with pytest.raises(ProtocolError, match=r"act at boundary 4.*beyond it, at boundary 5"):
        overshot(5, PLAN)
    with pytest.raises(ProtocolError):
        held_decision(member(State.PLANNED), 5, last=False)


def test_held_thread_is_let_go_when_its_round_came_to_nothing() -> None:
    assert held_decision(Member(0, 1), 3, last=False) is Decision.PASS
    assert held_decision(member(State.ANSWERED, 1), 3, last=False) is Decision.HOLD
    assert held_decision(Member(0, 0, State.LOST), 3, last=False) is Decision.PASS
    assert held_decision(Member(0, 0, State.LOST), 3, last=True, asked=0) is Decision.PASS


def test_last_boundary_waits_for_its_own_call_but_not_after_an_abort() -> None:
    assert held_decision(Member(0, 2), 9, last=True, asked=2) is Decision.HOLD
    assert held_decision(Member(0, 3), 9, last=True, asked=2) is Decision.PASS
    assert held_decision(member(State.ANSWERED, 3), 9, last=True, asked=2) is Decision.HOLD


def test_keys_of_a_round_share_a_prefix() -> None:
    assert key(0, 2, "at", 1) == "keras_preempt/0/2/at/1"
    assert key(1, 0) == "keras_preempt/1/0"


# The generated page.


def test_generated_page_is_not_stale(tmp_path: Path) -> None:
    def check(script: Path) -> int:
        return subprocess.run(
            [sys.executable, script, "--check"], capture_output=True, timeout=120
        ).returncode

    assert check(DIAGRAM) == 0
    copy = tmp_path / DIAGRAM.name
    copy.write_text(DIAGRAM.read_text())
    (tmp_path / "alignment.md").write_text(DIAGRAM.with_name("alignment.md").read_text() + "edited\n")
    assert check(copy) == 1
