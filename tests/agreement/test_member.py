"""What one worker decides, method by method; what comes of all of them together is explored in `test_explored`."""

from __future__ import annotations

import pytest

from keras_preempt.agreement.alignment import Decision, State, abort_plan
from keras_preempt.agreement.grace import Standing
from keras_preempt.agreement.member import (
    EXPECTED_WITHIN,
    ROUNDS_PER_REASON,
    CallRequest,
    Member,
    NoticeEffect,
    Withdrawn,
)
from keras_preempt.agreement.messages import At, Call, Failure, Kind, Plan, Position, ProtocolError
from keras_preempt.notices import Notice

RESERVE = 10.0
CALL = Call(1, Kind.PREEMPTED, "SIGTERM")
PLAN = Plan(4, Kind.PREEMPTED, (1,), (0,))
ABORT = abort_plan(CALL, "member 0 is silent")
HERE = Position(0, "train", 3)


def notice(ends_in: float | None = None, id: str = "", *, at: float = 0.0, hint: bool = False) -> Notice:
    deadline = None if ends_in is None else at + ends_in
    return Notice("test", "a notice", at, deadline, id=id, hint=hint, heard_at=at)


def begun(grace: float | None = None) -> Member:
    member = Member(0, Standing(grace))
    assert member.start(0.0, RESERVE) is None
    return member


def planned(plan: Plan = PLAN, *against: Notice) -> Member:
    member = begun()
    for each in against:
        member.notify(each, 0.0, RESERVE)
    member.hear(CALL)
    assert member.take(plan, 0.0, RESERVE) is None
    return member


def acting(plan: Plan, *against: Notice) -> Member:
    member = planned(plan, *against)
    member.hold(HERE)
    assert member.let_go(plan.target) is Decision.ACT
    return member


def call_of(request: CallRequest | None) -> Call:
    assert request is not None
    assert isinstance(request.call, Call)
    return request.call


# -- The round ------------------------------------------------------------------------------------------


def test_a_failure_instead_of_a_call_ends_agreement_but_not_for_one_that_has_closed() -> None:
    member, closed = begun(), begun()
    assert closed.close("an exception") == CallRequest(0, Failure(0, "", 0, "an exception"))
    for each in (member, closed):
        each.hear(Failure(1, "", 0, "ValueError"))
    assert (member.state, closed.state) == (State.LOST, State.LISTENING)
    assert not member.attention


@pytest.mark.parametrize("member", [planned(), acting(PLAN)], ids=["planned", "acting"])
def test_known_plan_survives_the_loss_of_coordination(member: Member) -> None:
    before = member.state
    member.lose()
    assert (member.state, member.plan) == (before, PLAN)


def test_nothing_is_answered_before_attention_is_set() -> None:
    member = begun()
    with pytest.raises(ProtocolError, match="Expected to answer a call"):
        member.answer(3)
    member.hear(CALL)
    assert member.answer(3).boundary == 4
    member.hold(HERE)
    assert member.answer(3).boundary == 3


def test_one_that_has_asked_in_a_round_or_is_lost_asks_nobody_at_the_end() -> None:
    member, lost = begun(), begun()
    assert member.finish() is not None
    assert member.finish() is None
    lost.lose()
    assert lost.finish() is None


def test_a_plan_that_ends_training_cannot_be_followed_by_more_of_it_or_by_the_call_of_a_notice() -> None:
    member = acting(PLAN)
    with pytest.raises(ProtocolError, match="a plan after which training continues"):
        member.acted(0.0, RESERVE)
    member.leave()
    assert member.notify(notice(), 0.0, RESERVE) == (NoticeEffect.OVER, None)


# -- Notices --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grace", "ends_in", "goes_on"),
    [(None, None, False), (None, 20.0, False), (None, 60.0, True), (0.0, 600.0, False)],
)
def test_a_notice_calls_at_once_and_says_whether_there_is_time_of_which_the_user_may_leave_less(
    grace: float | None, ends_in: float | None, goes_on: bool
) -> None:
    heard, request = begun(grace).notify(notice(ends_in), 0.0, RESERVE)
    assert heard is NoticeEffect.NEWS
    assert (call_of(request).kind, call_of(request).goes_on) == (Kind.PREEMPTED, goes_on)


def test_a_notice_before_the_start_calls_at_the_start_and_holds_the_main_thread() -> None:
    member = Member(0)
    assert member.notify(notice(), 0.0, RESERVE) == (NoticeEffect.NEWS, None)
    assert call_of(member.start(0.0, RESERVE)).kind is Kind.PREEMPTED
    assert member.awaits_call


@pytest.mark.parametrize("before", [False, True], ids=["after the start", "before the start"])
def test_a_hint_is_a_reason_to_save_and_none_to_leave(before: bool) -> None:
    member = Member(0) if before else begun()
    heard, request = member.notify(notice(hint=True), 0.0, RESERVE)
    if before:
        assert request is None
        request = member.start(0.0, RESERVE)
    assert (heard, call_of(request).kind, bool(member.standing)) == (NoticeEffect.HINT, Kind.PERIODIC, False)


def test_a_notice_that_leaves_more_time_changes_nothing_and_withdrawal_says_what_it_is_still_good_for() -> (
    None
):
    member = begun()
    assert member.withdraw(notice()) is Withdrawn.UNKNOWN
    member.notify(notice(60.0, "a"), 0.0, RESERVE)
    assert member.notify(notice(90.0, "b"), 0.0, RESERVE)[0] is NoticeEffect.KNOWN
    assert member.notify(notice(30.0, "c"), 0.0, RESERVE)[0] is NoticeEffect.NEWS
    for id in ("a", "c"):
        assert member.withdraw(notice(id=id)) is Withdrawn.OTHERS_STAND
    assert member.withdraw(notice(id="b")) is Withdrawn.FREE
    assert planned(PLAN, notice()).withdraw(notice()) is Withdrawn.TOO_LATE


def test_a_worker_asks_again_after_aborted_rounds_but_not_for_ever() -> None:
    member, asked = begun(), 0
    _, request = member.notify(notice(), 0.0, RESERVE)
    while request is not None:
        asked += 1
        member.hear(call_of(request))
        request = member.take(ABORT, 0.0, RESERVE)
    assert asked == ROUNDS_PER_REASON
    assert member.stopped_asking


def test_many_signals_in_one_round_are_one_reason() -> None:
    member = begun()
    for _ in range(6):
        member.notify(notice(), 0.0, RESERVE)
    assert member.calls == 1


# -- A notice that a signal handler announces ---------------------------------------------------------------


def test_whoever_is_told_by_a_signal_holds_at_the_next_boundary_and_no_further() -> None:
    member = begun()
    member.expect(0.0, 2)
    member.notify(notice(), 0.0, RESERVE)
    member.hear(CALL)
    assert member.answer(2).boundary == 3
    assert member.answer(3).boundary == 3  # It is about to hold there.
    member.hold(HERE)
    assert member.answer(3) == At(member.index, 3, HERE, True)


def test_an_announced_notice_that_does_not_come_holds_for_a_moment_only() -> None:
    member = begun()
    member.expect(100.0)
    member.hold(HERE)
    assert member.expected_until == 100.0 + EXPECTED_WITHIN
    assert not member.expect_no_more(100.0 + EXPECTED_WITHIN / 2)
    assert member.let_go(3) is Decision.HOLD
    assert member.expect_no_more(100.0 + EXPECTED_WITHIN)
    assert member.let_go(3) is Decision.PASS


def test_nothing_is_expected_outside_of_a_fit_or_during_the_countdown() -> None:
    assert not Member(0).expect(0.0)
    assert not counting().expect(0.0)


# -- The countdown ------------------------------------------------------------------------------------------


def counting(*against: Notice) -> Member:
    """It has saved for notices that leave time, and trains on."""
    against = against or (notice(100.0),)
    member = acting(Plan(3, Kind.PREEMPTED, (1,), (0,), goes_on=True), *against)
    assert member.acted(0.0, RESERVE) is None
    return member


def test_the_last_call_leaves_the_reserve() -> None:
    member = counting()
    assert member.attention
    assert member.due(RESERVE) == 90.0
    assert member.count_down(89.0, RESERVE) is None
    call = call_of(member.count_down(90.0, RESERVE))
    assert (call.kind, call.goes_on) == (Kind.DEADLINE, False)
    assert member.due(RESERVE) is None  # It has called.


def test_a_second_notice_moves_the_last_call_and_a_withdrawn_one_ends_the_countdown() -> None:
    member = counting(notice(100.0, "a"))
    assert member.notify(notice(50.0, "b"), 0.0, RESERVE) == (NoticeEffect.NEWS, None)
    assert member.due(RESERVE) == 40.0
    member.withdraw(notice(id="b"))
    assert member.due(RESERVE) == 90.0
    member.withdraw(notice(id="a"))
    assert member.due(RESERVE) is None
    assert not member.attention


def test_a_round_that_is_aborted_during_the_countdown_does_not_end_it_early() -> None:
    member = counting()
    member.hear(Call(1, Kind.PERIODIC))
    assert member.take(ABORT, 0.0, RESERVE) is None
    assert member.due(RESERVE) == 90.0
