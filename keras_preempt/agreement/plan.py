"""From a call and its answers to a plan: the pure part of what watcher threads do in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from keras_preempt.agreement.messages import At, Call, Kind, Plan, Position, ProtocolError


def answer(member: int, entered: int, held: bool, position: Position | None, doomed: bool) -> At:
    """What `member` publishes after it has set attention.

    Args:
        member: Index of the member.
        entered: Boundaries that its main thread has entered, read together with `held`.
        held: Whether the main thread stands at boundary `entered` until it is let go.
        position: What that boundary is; used only if held.
        doomed: Whether the member is under notice.
    """
    return At(member, entered if held else entered + 1, position if held else None, doomed)


def make_plan(call: Call, answers: Sequence[At], members: Sequence[int]) -> Plan:
    """The plan that the caller publishes once every member has answered.

    The mirrored state is written by the members that are not under notice, or by all if all are. Members that
    stand at one boundary and take it for different places run different programs: that aborts the round.

    Args:
        call: The call that stands.
        answers: One per member, in any order.
        members: Indices of all members.

    Raises:
        ProtocolError: `answers` are not exactly one per member, or the call is one that no plan follows.
    """
    if call.kind is Kind.FAILED:
        raise ProtocolError(f"Expected a call that a plan follows. Received: {call}.")
    answered = sorted(at.member for at in answers)
    if answered != sorted(members):
        raise ProtocolError(
            f"Expected one answer from each of {sorted(members)}. Received answers from {answered}."
        )
    standing: dict[int, At] = {}
    for at in sorted(answers, key=lambda at: at.member):
        first = standing.setdefault(at.boundary, at) if at.position else at
        if first.position and at.position and not first.position.agrees_with(at.position):
            return abort_plan(
                call,
                f"members {first.member} and {at.member} disagree about boundary {at.boundary}: member "
                f"{first.member} is at {first.position}; member {at.member} is at {at.position}. All workers "
                "must run the same program on datasets of the same length.",
            )
    dooming = {call.member} if call.kind is Kind.PREEMPTED else set()
    doomed = dooming | {at.member for at in answers if at.doomed}
    writers = [member for member in answered if member not in doomed] or answered
    target = max(at.boundary for at in answers)
    goes_on = call.goes_on or call.kind is Kind.PERIODIC
    return Plan(target, call.kind, tuple(writers), tuple(sorted(doomed)), None, call.deadline, goes_on)


def abort_plan(call: Call, why: str) -> Plan:
    """The plan of a round that nothing comes of; inserted by whoever stops waiting first."""
    return Plan(0, call.kind, (), (), why or "no reason given", call.deadline)


def without(plan: Plan, late: Sequence[int], members: Sequence[int], own: int) -> Plan:
    """A plan to save by while some of its writers are gone; every survivor comes to the same one by itself.

    All of them stand at the target with the same weights. So the writers that are left write everything, or the first
    worker under notice if none is; and nobody but the writers is waited for longer than a worker under notice is.

    Args:
        plan: The plan, of which nothing came.
        late: Writers that are gone, or taken for that, of this plan and of those before it; never this worker.
        members: Indices of all members.
        own: This worker's index.
    """
    gone = set(late) - {own}
    left = [member for member in plan.writers if member not in gone]
    heirs = [member for member in plan.doomed if member not in gone and member not in plan.writers]
    writers = tuple(left or heirs[:1] or [own])
    if writers == plan.writers:  # As far as this worker knows, it is the only one.
        writers = (own,)
    doomed = sorted({*plan.doomed, *members}.difference(writers))
    return replace(plan, writers=writers, doomed=tuple(doomed))
