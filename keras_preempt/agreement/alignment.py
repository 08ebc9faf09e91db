"""Step alignment: how the workers of one fit agree on the boundary at which all of them act.

Pure: no clock, no thread, no I/O. Everything that affects a transition is in this file (the messages are
in `messages.py`), so a test can run every interleaving of a small cluster through these very
functions. `docs/alignment.md` is generated from `TRANSITIONS`.

Theory of operation
===================

A *boundary* is a point that every worker's main thread passes in the same order; `entered` counts those
that a worker has entered. A *round* is one agreement, over keys that are inserted once and never changed:

1. *call*: a worker with a reason inserts `call`. The first one wins for all.
2. *hold*: every worker's watcher thread waits for `call`. It sets `attention`, then reads how far the main
   thread is, and inserts `at/<member>`: the next boundary at which this worker can stop.
3. *plan*: the caller gathers every `at` and inserts `plan`: act at the highest of them.
4. *go*: a worker below the target trains on; at the target it acts: saves, then leaves or trains on.

Two threads of a worker share `entered`, `held` and a `Member`. They may do so without a lock on the hot path
because of the order of four accesses: the main thread increments `entered` and then reads `attention`;
the watcher sets `attention` and then reads `entered`. So either the watcher sees the increment, or the main
thread sees attention and holds. Two things are one step each, under a lock: reading `held` together with
`entered`, and deciding to let a held main thread go (`held_decision`) together with clearing `held`. Else a
boundary may be published as one where the thread stands while it is already leaving.

Why nobody passes the target: a member either holds, or has published a boundary that it has yet to reach,
and the target is no lower. Attention therefore stays set from the call until the target is reached, also
across boundaries passed on the way to it. Why nobody deadlocks: answering needs no main thread, and every
wait is bounded: who runs out of patience, the caller gathering or a member waiting for the plan, inserts an
aborted plan. `plan` is inserted once, so plan or abort is decided once for all, and the loser obeys it.

The last boundary. After it a worker could no longer answer. So there it always calls (`finished`), and if
another call stands already, it holds like anyone. A plan that is carried out there, with its target at or
beyond it, means that everyone finishes: whoever is not there yet has a target that it cannot reach earlier.
If the round is aborted there, training ends without agreement.

Loss of coordination matters only while something is still to be agreed. A member that knows its plan needs
no one: it goes on to the target and acts there, although the service, or the member hosting it, is gone.

Keys of a round may be deleted once a later round has a plan that is not aborted: everybody has answered in
that one, so everybody has left the earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from keras_preempt.agreement.messages import At, Call, Kind, Plan, Position, ProtocolError
from keras_preempt.agreement.plan import abort_plan, answer, make_plan

__all__ = [
    "TRANSITIONS",
    "At",
    "Call",
    "Decision",
    "Event",
    "Kind",
    "Member",
    "Plan",
    "Position",
    "ProtocolError",
    "State",
    "Transition",
    "abort_plan",
    "advance",
    "answer",
    "decide",
    "finishing",
    "held_decision",
    "key",
    "make_plan",
    "outcome",
    "overshot",
]


class State(str, Enum):
    """What a member is doing in its round."""

    LISTENING = "listening"
    ANSWERED = "answered"
    PLANNED = "planned"
    ACTING = "acting"
    LEFT = "left"
    FINISHED = "finished"
    LOST = "lost"


class Event(str, Enum):
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

    HOLD = "hold"
    """Wait: the plan is not known yet."""
    PASS = "pass"
    """Train on: the target is further ahead, or nothing came of the round."""
    ACT = "act"
    """Carry the plan out here."""


@dataclass(frozen=True)
class Transition:
    """One row of the table: in `source`, `event` leads to `target`.

    Attributes:
        source: The state before.
        event: What happens.
        target: The state after.
        meaning: Why, for the documentation.
        next_round: Whether this ends the round: its call and plan are dropped and the number goes up.
    """

    source: State
    event: Event
    target: State
    meaning: str
    next_round: bool = False


TRANSITIONS: tuple[Transition, ...] = (
    Transition(
        State.LISTENING, Event.CALL, State.ANSWERED, "a call stands: attention on, then answer with `at`"
    ),
    Transition(State.LISTENING, Event.LOST, State.LOST, "coordination is gone, or a member failed"),
    Transition(State.LISTENING, Event.FINISH, State.FINISHED, "training ended after an aborted round"),
    Transition(State.ANSWERED, Event.PLAN, State.PLANNED, "the target is known"),
    Transition(State.ANSWERED, Event.ABORT, State.LISTENING, "nothing comes of this round: train on", True),
    Transition(State.ANSWERED, Event.LOST, State.LOST, "no plan will come: let training's own error surface"),
    Transition(State.PLANNED, Event.REACHED, State.ACTING, "the main thread is at the target"),
    Transition(State.PLANNED, Event.LOST, State.PLANNED, "a known plan needs no coordination"),
    Transition(State.ACTING, Event.ACTED, State.LISTENING, "saved: train on", True),
    Transition(State.ACTING, Event.LEAVE, State.LEFT, "saved: leave the process"),
    Transition(State.ACTING, Event.FINISH, State.FINISHED, "the last boundary: training is complete"),
    Transition(State.ACTING, Event.LOST, State.ACTING, "saving goes through storage, not coordination"),
    Transition(State.LEFT, Event.LOST, State.LEFT, "others leave too"),
    Transition(State.FINISHED, Event.LOST, State.FINISHED, "others finish too"),
    Transition(State.LOST, Event.LOST, State.LOST, "told twice"),
)

_BY_SOURCE = {(row.source, row.event): row for row in TRANSITIONS}
_ATTENTIVE = frozenset({State.ANSWERED, State.PLANNED, State.ACTING})


@dataclass(frozen=True)
class Member:
    """One worker as alignment sees it.

    Attributes:
        index: The worker's index in the cluster.
        round: Number of the round that it is in, from 0.
        state: What it is doing in that round.
        call: The call that stands in that round, once seen.
        plan: The plan that stands in that round, once seen; never an aborted one.
    """

    index: int
    round: int = 0
    state: State = State.LISTENING
    call: Call | None = None
    plan: Plan | None = None

    @property
    def attention(self) -> bool:
        """Whether the main thread has to look at the round at every boundary."""
        return self.state in _ATTENTIVE


def advance(member: Member, event: Event, *, call: Call | None = None, plan: Plan | None = None) -> Member:
    """`member` after `event`, as the table has it.

    What was received says what has happened: CALL with a failed call is LOST, PLAN with an aborted plan is
    ABORT.

    Args:
        member: The member before.
        event: What happened.
        call: With CALL, the call that stands.
        plan: With PLAN, the plan that stands.

    Raises:
        ProtocolError: The table has no such event in this state, or its message is missing.
    """
    if (event is Event.CALL) != (call is not None) or (
        plan is not None and event not in (Event.PLAN, Event.ABORT)
    ):
        raise ProtocolError(
            f"Expected a call with {Event.CALL} and a plan with {Event.PLAN}. Received: {event}."
        )
    if event is Event.PLAN and plan is None:
        raise ProtocolError("Expected the plan that stands with the event 'plan'. Received: none.")
    if call is not None and call.kind is Kind.FAILED:
        event = Event.LOST
    if plan is not None and plan.abort is not None:
        event = Event.ABORT
    row = _BY_SOURCE.get((member.state, event))
    if row is None:
        allowed = ", ".join(repr(row.event.value) for row in TRANSITIONS if row.source is member.state)
        raise ProtocolError(
            f"Expected one of the events {allowed} for member {member.index}, {member.state.value} in round "
            f"{member.round}. Received: '{event.value}'."
        )
    if row.next_round:
        return Member(member.index, member.round + 1, row.target)
    return replace(member, state=row.target, call=call or member.call, plan=plan or member.plan)


def decide(entered: int, plan: Plan | None, last: bool) -> Decision:
    """What a main thread at boundary `entered` does about `plan`, which is None if not known yet.

    At the last boundary every plan that is not aborted is carried out, also one whose target lies beyond it.
    """
    if plan is None:
        return Decision.HOLD
    if plan.abort is not None:
        return Decision.PASS
    return Decision.ACT if last or entered >= plan.target else Decision.PASS


def held_decision(member: Member, entered: int, *, last: bool, asked: int | None = None) -> Decision:
    """What a main thread held at boundary `entered` does now; ask again whenever `member` has changed.

    Evaluate it, and clear `held` unless it says HOLD, in one step under the lock that guards `member`.

    Args:
        member: The member now; maybe in a later round than when the hold began.
        entered: Boundaries entered.
        last: Whether this is the last boundary.
        asked: At the last boundary, the round in which this thread made sure that a call stands, else None.

    Raises:
        ProtocolError: The main thread is already beyond the target.
    """
    if member.state is State.LOST:
        return Decision.PASS
    if member.state is State.LISTENING:
        # Either the call that the thread itself asked for has not come back yet, or the round was aborted.
        awaiting = last and asked is not None and asked == member.round
        return Decision.HOLD if awaiting else Decision.PASS
    if member.plan is not None:
        overshot(entered, member.plan)
    return decide(entered, member.plan, last)


def finishing(entered: int, plan: Plan, last: bool) -> bool:
    """Whether acting here is finishing: the last boundary was reached, so everyone finishes at it."""
    return last and decide(entered, plan, last) is Decision.ACT


def outcome(entered: int, plan: Plan, last: bool) -> Event:
    """The event that ends the acting: FINISH at the last boundary; else ACTED or LEAVE, as planned."""
    if finishing(entered, plan, last):
        return Event.FINISH
    return Event.ACTED if plan.goes_on else Event.LEAVE


def overshot(entered: int, plan: Plan) -> None:
    """Raise `ProtocolError` if boundary `entered` is beyond the target: others have acted at the target."""
    if plan.abort is None and entered > plan.target:
        raise ProtocolError(
            f"Expected to act at boundary {plan.target}. Received: the main thread beyond it, at boundary "
            f"{entered}. Check that no callback skips batches on some workers only; else please report this."
        )


def key(fit: int, round: int, *rest: str | int) -> str:
    """The key of a round's message, for example `keras_preempt/0/2/at/1`.

    Args:
        fit: How many fits this process has begun; the same on every worker.
        round: Number of the round.
        rest: Further parts: "call", "plan", or "at" and the member's index.
    """
    return "/".join(("keras_preempt", str(fit), str(round), *map(str, rest)))
