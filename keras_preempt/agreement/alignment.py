"""Step alignment: how the workers of one fit agree on the boundary at which all of them act.

Pure: no clock, no thread, no I/O. The table of states and the rules of a round are in this file; `member.py` applies
them to one worker, whose notices and countdown it keeps. The messages are in `messages.py`. Nothing else affects a
transition, so the tests run every interleaving of a small cluster through the very functions and classes that a fit
runs. `docs/alignment.md` is generated from `TRANSITIONS`.

Theory of operation
===================

A *boundary* is a point that every worker's main thread passes in the same order; `entered` counts those
that a worker has entered. A *round* is one agreement, over keys that are inserted once and never changed:

1. *call*: a worker with a reason inserts `call`. The first one wins for all.
2. *hold*: every worker's watcher thread waits for `call`. It sets `attention`, then reads how far the main
   thread is, and inserts `at/<member>`: the next boundary at which this worker can stop.
3. *plan*: the caller gathers every `at` and inserts `plan`: act at the highest of them.
4. *go*: a worker below the target trains on; at the target it acts: saves, then leaves or trains on.

Two threads of a worker share `entered`, `attention` and a `Member`. They may do so without a lock on the hot path
because of the order of four accesses: the main thread increments `entered` and then reads `attention`;
the watcher sets `attention` and then reads `entered`. So either the watcher sees the increment, or the main
thread sees attention and holds. Two things are one step each, under a lock: reading `held` together with
`entered` (`Member.answer`), and deciding to let a held main thread go together with clearing `held`
(`Member.let_go`). Otherwise a boundary could be published as one where the thread stands while it is already leaving.

Why nobody passes the target: a member either holds, or has published a boundary that it has yet to reach,
and the target is no lower. Attention therefore stays set from the call until the target is reached, also
across boundaries passed on the way to it. Where a worker calls for a notice of its own, attention is set before
that, and its main thread begins no further step until the call is back. One that a signal handler has interrupted
has had attention from then on, so that it holds at the first boundary that it enters afterwards: that one is
published, also if it is being entered at this moment. Why nobody deadlocks: answering needs no main thread, and every
wait is bounded: whoever runs out of patience, the caller gathering or a member waiting for the plan, inserts an
aborted plan. `plan` is inserted once, so plan or abort is decided once for all, and the loser obeys it.

The last boundary. After it a worker could no longer answer. So there it always calls (`finished`), and if
another call stands already, it holds like anyone. A plan that is carried out there, with its target at or
beyond it, means that everyone finishes: whoever is not there yet has a target that it cannot reach earlier.
If the round is aborted there, the worker calls again. After a few rounds it gives up, by a message that is inserted in
place of a call: where that stands, every worker trains to its end without agreement, and where another call stands, the
worker holds like anyone. So either all act at the last boundary or none does, and no plan counts on one that has ended.

Notices and the countdown. A worker under notice calls until a round has served its notice. If there is time, that
round saves and training continues (`goes_on`); from then on the worker counts down, and calls the last round when only
the reserve is left. A notice that comes meanwhile moves that moment. A notice that is withdrawn counts no more; a call
that was made for it stands.

An interrupt of the user is like a notice without any time, and does not go away. The machine stays, so that its worker
is not under notice: it writes its share, and nobody starts the job again.

Loss of coordination matters only while something is still to be agreed. A member that knows its plan needs
no one: it trains up to the target and acts there, although the service, or the member hosting it, is gone.

Keys of a round may be deleted once a later round has a plan that is not aborted: everybody has answered in
that one, so everybody has left the earlier ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from keras_preempt.agreement.messages import At, Call, Kind, Plan, Position, ProtocolError


class State(str, Enum):
    """What a member is doing in its round."""

    LISTENING = "listening"
    ANSWERED = "answered"
    PLANNED = "planned"
    ACTING = "acting"
    LEFT = "left"
    FINISHED = "finished"
    LOST = "lost"


class Trigger(str, Enum):
    """What happens to a member."""

    CALL = "call"
    PLAN = "plan"
    ABORT = "abort"
    LOST = "lost"
    REACHED = "reached"
    ACTED = "acted"
    LEAVE = "leave"
    FINISH = "finish"


class Decision(str, Enum):
    """What a main thread does at a boundary."""

    HOLD = "hold"  # Wait: the plan is not known yet.
    PASS = "pass"  # Train on: the target is further ahead, or nothing came of the round.
    ACT = "act"  # Carry out the plan here.


@dataclass(frozen=True)
class Transition:
    """One row of the table: in `source`, `event` leads to `target`."""

    source: State
    event: Trigger
    target: State
    meaning: str  # Why, for the documentation.
    next_round: bool = False  # Whether this ends the round: its plan is dropped and the number goes up.


TRANSITIONS: tuple[Transition, ...] = (
    Transition(
        State.LISTENING, Trigger.CALL, State.ANSWERED, "a call stands: attention on, then answer with `at`"
    ),
    Transition(State.LISTENING, Trigger.LOST, State.LOST, "coordination is gone, or a member failed"),
    Transition(State.LISTENING, Trigger.FINISH, State.FINISHED, "training ended after an aborted round"),
    Transition(State.ANSWERED, Trigger.PLAN, State.PLANNED, "the target is known"),
    Transition(State.ANSWERED, Trigger.ABORT, State.LISTENING, "nothing comes of this round: train on", True),
    Transition(
        State.ANSWERED, Trigger.LOST, State.LOST, "no plan will come: let training's own error surface"
    ),
    Transition(State.PLANNED, Trigger.REACHED, State.ACTING, "the main thread is at the target"),
    Transition(State.PLANNED, Trigger.LOST, State.PLANNED, "a known plan needs no coordination"),
    Transition(State.ACTING, Trigger.ACTED, State.LISTENING, "saved: train on", True),
    Transition(State.ACTING, Trigger.LEAVE, State.LEFT, "saved: leave the process"),
    Transition(State.ACTING, Trigger.FINISH, State.FINISHED, "the last boundary: training is complete"),
    Transition(State.ACTING, Trigger.LOST, State.ACTING, "saving goes through storage, not coordination"),
    Transition(State.LEFT, Trigger.LOST, State.LEFT, "others leave too"),
    Transition(State.FINISHED, Trigger.LOST, State.FINISHED, "others finish too"),
    Transition(State.LOST, Trigger.LOST, State.LOST, "told twice"),
)

_BY_SOURCE = {(row.source, row.event): row for row in TRANSITIONS}


def transition(state: State, event: Trigger) -> Transition:
    """The row of the table for `event` in `state`; raises ProtocolError if there is none."""
    row = _BY_SOURCE.get((state, event))
    if row is None:
        allowed = ", ".join(repr(row.event.value) for row in TRANSITIONS if row.source is state)
        raise ProtocolError(
            f"Expected one of the events {allowed} for a member that is {state.value}. Received: '{event.value}'."
        )
    return row


def answer(member: int, entered: int, held: Position | None, doomed: bool) -> At:
    """What `member` publishes after it has set attention; `held` is what boundary `entered` is, if held there."""
    return At(member, entered if held else entered + 1, held, doomed)


def make_plan(call: Call, answers: Sequence[At], members: Sequence[int]) -> Plan:
    """The plan that the caller publishes once every member has answered.

    The mirrored state is written by the members that are not under notice, or by all if all are. Members that
    stand at one boundary and take it for different places run different programs: that aborts the round. Raises
    ProtocolError if there is not exactly one answer per member.
    """
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
    goes_on = call.goes_on or call.kind in (Kind.PERIODIC, Kind.REQUESTED)
    return Plan(target, call.kind, tuple(writers), tuple(sorted(doomed)), None, goes_on)


def abort_plan(call: Call, why: str) -> Plan:
    """The plan of a failed round; inserted by whoever stops waiting first."""
    return Plan(0, call.kind, (), (), why or "no reason given")


def decide(entered: int, plan: Plan | None, last: bool) -> Decision:
    """What a main thread at boundary `entered` does about `plan`, which is None if not known yet.

    At the last boundary every plan that is not aborted is carried out, also one whose target lies beyond it. Raises
    ProtocolError if the main thread is already beyond the target, where the others have acted.
    """
    if plan is None:
        return Decision.HOLD
    if plan.abort is not None:
        return Decision.PASS
    if entered > plan.target:
        raise ProtocolError(
            f"Expected to act at boundary {plan.target}. Received: the main thread beyond it, at boundary "
            f"{entered}. Check that no callback skips batches on some workers only; else please report this."
        )
    return Decision.ACT if last or entered == plan.target else Decision.PASS


def outcome(plan: Plan, last: bool) -> Trigger:
    """The event that ends the acting on `plan`: FINISH at the last boundary; else ACTED or LEAVE, as planned."""
    if last:
        return Trigger.FINISH
    return Trigger.ACTED if plan.goes_on else Trigger.LEAVE


def without(plan: Plan, late: Sequence[int], members: Sequence[int], own: int) -> Plan:
    """A plan to save by while some of its writers are gone; every survivor comes to the same one by itself.

    All of them stand at the target with the same weights. So the writers that are left write everything, or the first
    worker under notice if none is; and nobody but the writers is waited for longer than a worker under notice is.

    `late` are writers that are gone, or taken for that, of this plan and of those before it; never this worker, `own`.
    """
    gone = set(late) - {own}
    left = [member for member in plan.writers if member not in gone]
    heirs = [member for member in plan.doomed if member not in gone and member not in plan.writers]
    writers = tuple(left or heirs[:1] or [own])
    if writers == plan.writers:  # As far as this worker knows, it is the only one.
        writers = (own,)
    doomed = sorted({*plan.doomed, *members}.difference(writers))
    return replace(plan, writers=writers, doomed=tuple(doomed))
