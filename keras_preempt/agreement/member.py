"""One worker's part in the rounds: its state, the notices against it, its countdown, and every decision that it takes.

Pure: moments are given, in monotonic seconds, and what is to be said to the others is returned. A fit's threads call
these methods under one lock (see `delegate.py`), the tests in every order that such threads can come to.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum

from keras_preempt.agreement.alignment import Decision, State, Trigger, answer, decide, outcome, transition
from keras_preempt.agreement.grace import Notice, Standing, has_room
from keras_preempt.agreement.messages import At, Call, Failure, Kind, Plan, Position, ProtocolError

ROUNDS_PER_REASON = 3  # How often a reason calls a round again after one was aborted.

EXPECTED_WITHIN = 2.0
"""Seconds within which a notice follows the signal handler that has announced it, or it does not come at all."""

_ATTENTIVE = frozenset({State.ANSWERED, State.PLANNED, State.ACTING})
_OVER = frozenset({State.FINISHED, State.LEFT})
_WITHOUT_AGREEMENT = frozenset({State.LOST, State.FINISHED})


class NoticeEffect(Enum):
    """What a notice means to the worker that has heard it."""

    NEWS = "its end comes, or comes earlier than was known"
    KNOWN = "an earlier notice leaves less time"
    HINT = "a notice may follow"
    OVER = "training is over already"


class Withdrawn(Enum):
    """What the withdrawal of a notice means."""

    UNKNOWN = "the notice did not stand"
    OTHERS_STAND = "another notice stands"
    TOO_LATE = "the workers have agreed to leave"
    FREE = "training continues as if there had been no notice"


@dataclass(frozen=True)
class CallRequest:
    """What a worker inserts under `call` of a round, unless that is taken: a call, or why this worker left."""

    round: int
    call: Call | Failure


@dataclass
class Member:
    """One worker as alignment sees it."""

    index: int
    standing: Standing = Standing()  # noqa: RUF009 (it is frozen)
    round: int = 0  # The one that it is in.
    state: State = State.LISTENING
    plan: Plan | None = None  # That of this round, once seen; never an aborted one.
    open: bool = False  # Whether it takes part in rounds: from the start of the fit to its end.
    held: Position | None = None  # The boundary at which its main thread stands until it is let go.
    last: bool = False  # Whether its main thread is at the last boundary.
    asked: int = -1  # At the last boundary: the round in which it has made sure that there is a call.
    asks: int = 0  # How many rounds it has asked for there.
    trains_on: bool = False  # A save has served its notices, so that it counts down to the last save.
    called: int = -1  # The round in which it has called for its notices last.
    calls: int = 0  # In how many rounds it has called for them, since one of these calls was carried out.
    # The round in which its own call is on its way, or a signal handler, which takes no lock, has announced a notice;
    # since when; and how many boundaries the main thread had entered then, if it ran the handler.
    expected: int = -1
    expected_at: float = 0.0
    expected_after: int = 0
    interrupted: bool = False  # By its user.
    hint: str = ""  # Why it saves at its start: it was told before that a notice may follow.

    @property
    def attention(self) -> bool:
        """Whether the main thread has to look closer at every boundary.

        It has to during the countdown, since the reserve depends on the slowest step.
        """
        return self.in_round or self.trains_on

    @property
    def in_round(self) -> bool:
        """Whether a call stands that is not carried out yet, or is about to be made."""
        return self.state in _ATTENTIVE or self.awaits_call

    @property
    def awaits_call(self) -> bool:
        """Whether a call of its own has been announced by `expect` and has not come back yet."""
        return self.state is State.LISTENING and self.expected == self.round

    @property
    def stopped_asking(self) -> bool:
        """Whether it has called too often without success to call again."""
        return self.calls > ROUNDS_PER_REASON

    def advance(self, event: Trigger, plan: Plan | None = None) -> None:
        """Takes `event`, as in the table, and with PLAN the plan of this round."""
        row = transition(self.state, event)
        self.state = row.target
        self.plan = None if row.next_round else plan or self.plan
        self.round += row.next_round

    # -- Notices ------------------------------------------------------------------------------------

    def start(self, now: float, reserve: float) -> CallRequest | None:
        """Takes part in rounds from now on; notices that came before are acted on now."""
        self.open = True
        request = self._call_at_once(now, reserve)
        return request if request or not self.hint else self._call_to_save(Kind.PERIODIC, self.hint)

    def expect(self, now: float, entered: int = sys.maxsize) -> bool:
        """A signal handler announces a notice; returns whether the main thread is to hold at its next boundary.

        The only method that is called without the lock: it sets attributes that nobody else sets meanwhile. `entered`
        is the number of boundaries entered, if the main thread calls this.
        """
        if not self.open or self.trains_on:  # During the countdown a further notice need not end in a call.
            return False
        self.expected_at, self.expected_after = now, entered
        self.expected = self.round
        return True

    def notify(self, notice: Notice, now: float, reserve: float) -> tuple[NoticeEffect, CallRequest | None]:
        """Takes a notice, and calls for it unless the countdown runs."""
        before = self.standing
        if not notice.hint:
            self.standing = before.add(notice)
        if self.open and self.state in _OVER:
            return NoticeEffect.OVER, None
        if notice.hint:
            self.hint = notice.reason
            return NoticeEffect.HINT, self._call_to_save(Kind.PERIODIC, notice.reason)
        listening = self.open and self.state in (State.LISTENING, State.ANSWERED)
        request = self.call_to_leave(now, reserve) if listening and not self.trains_on else None
        if request is not None and not self.awaits_call:
            self.expect(now)  # No further step until the call is back, as after a signal.
        news = not before or self.standing.save_deadline < before.save_deadline
        return NoticeEffect.NEWS if news else NoticeEffect.KNOWN, request

    def withdraw(self, notice: Notice) -> Withdrawn:
        """A source takes back what it announced. A call that was made already stands."""
        before, self.standing = self.standing, self.standing.withdraw(notice)
        if self.standing == before:
            return Withdrawn.UNKNOWN
        if self.standing:
            return Withdrawn.OTHERS_STAND
        self.trains_on = False
        leaves = self.open and self.plan is not None and not self.plan.goes_on
        return Withdrawn.TOO_LATE if leaves else Withdrawn.FREE

    def interrupt(self, now: float, reserve: float) -> tuple[NoticeEffect, CallRequest | None]:
        """The user interrupts this worker: all save and leave, also during the countdown."""
        heard = NoticeEffect.KNOWN if self.interrupted else NoticeEffect.NEWS
        self.interrupted = True
        if self.open and self.state in _OVER:
            return NoticeEffect.OVER, None
        listening = self.open and self.state in (State.LISTENING, State.ANSWERED)
        return heard, self.call_to_leave(now, reserve) if listening else None

    def call_to_leave(self, now: float, reserve: float) -> CallRequest | None:
        """Calls for an interrupt or the notices that stand: to save, then leave, or train on if there is time."""
        if not (self.standing or self.interrupted):
            return None
        if self.called != self.round:
            self.called = self.round
            self.calls += 1
            if self.stopped_asking:
                self.expected = -1
                return None
        if self.interrupted:
            return CallRequest(self.round, Call(self.index, Kind.INTERRUPTED, "interrupted by its user"))
        kind = Kind.DEADLINE if self.trains_on else Kind.PREEMPTED
        goes_on = kind is Kind.PREEMPTED and has_room(self.standing.save_deadline, now, reserve)
        return CallRequest(self.round, Call(self.index, kind, self.standing.first.reason, goes_on))

    def _call_at_once(self, now: float, reserve: float) -> CallRequest | None:
        if not (self.standing or self.interrupted):
            return None
        self.expect(now)  # No further step until the call is back.
        return self.call_to_leave(now, reserve)

    # -- The countdown ------------------------------------------------------------------------------

    @property
    def _counts_down(self) -> bool:
        """Whether the next call is up to the countdown."""
        return self.trains_on and not self.interrupted

    def due(self, reserve: float) -> float | None:
        """When the countdown calls the last round; None for never, or not before something changes."""
        counts = self.open and self.trains_on and self.standing and self.state is State.LISTENING
        if not counts or self.called == self.round:  # If it has called, the call is on its way.
            return None
        return self.standing.save_deadline - reserve

    def count_down(self, now: float, reserve: float) -> CallRequest | None:
        """Calls the last round if the time for it has come."""
        due = self.due(reserve)
        return None if due is None or now < due else self.call_to_leave(now, reserve)

    # -- The main thread ----------------------------------------------------------------------------

    def hold(self, position: Position) -> None:
        """The main thread stands at a boundary from now on, until `let_go` says something else than HOLD."""
        self.held = position

    def let_go(self, entered: int) -> Decision:
        """What the held main thread does now, asked again after each change; ProtocolError beyond the target."""
        decision = self._decision(entered)
        if self.awaits_call:
            return Decision.HOLD
        if decision is not Decision.HOLD:
            self.held = None
        if decision is Decision.ACT:
            self.advance(Trigger.REACHED)
        return decision

    def _decision(self, entered: int) -> Decision:
        if self.state in _WITHOUT_AGREEMENT:
            return Decision.PASS
        if self.state is State.LISTENING:
            # Either the call that the thread itself asked for has not come back yet, or the round was aborted.
            return Decision.HOLD if self.last and self.asked == self.round else Decision.PASS
        return decide(entered, self.plan, self.last)

    @property
    def expected_until(self) -> float | None:
        """Until when to wait for an announced notice; None if none is awaited, or it has come."""
        return self.expected_at + EXPECTED_WITHIN if self.awaits_call and self.called != self.round else None

    def expect_no_more(self, now: float) -> bool:
        """Stops waiting for an announced notice that is late; returns whether there is one."""
        until = self.expected_until
        if until is None or now < until:
            return False
        self.expected = -1
        return True

    def finish(self) -> CallRequest | None:
        """The main thread is at the last boundary; None once training ends here without agreement.

        A worker that has asked in enough rounds gives up, by a message in place of a call. If another worker's call
        came first, it holds for that one like any other. So no plan counts on a worker that has ended.
        """
        self.last = True
        if self.state is State.LOST or self.asked == self.round:
            return None  # It was let go in this round, which was not aborted.
        self.asked = self.round
        if self.asks == ROUNDS_PER_REASON:
            why = f"no agreement at the end of training, after {ROUNDS_PER_REASON} rounds"
            return CallRequest(self.round, Failure(self.index, "", 0, why))
        self.asks += 1
        return CallRequest(self.round, Call(self.index, Kind.FINISHED, "training finished"))

    def call_periodic(self, now: float = 0.0, reserve: float = 0.0) -> CallRequest | None:
        return self._call_to_save(Kind.PERIODIC, "the time to save has come")

    def call_requested(self, now: float = 0.0, reserve: float = 0.0) -> CallRequest | None:
        return self._call_to_save(Kind.REQUESTED, "a save was asked for")

    def _call_to_save(self, kind: Kind, reason: str) -> CallRequest | None:
        """Calls for a save after which training continues, unless a round is under way."""
        if not self.open or self.state is not State.LISTENING:
            return None
        return CallRequest(self.round, Call(self.index, kind, reason))

    def acted(self, now: float, reserve: float) -> CallRequest | None:
        """The plan is carried out and training continues; a notice that it knew of needs only the last call."""
        plan = self.plan
        if plan is None or outcome(plan, self.last) is not Trigger.ACTED:
            raise ProtocolError(f"Expected a plan after which training continues. Received: {plan}.")
        self.calls = 0
        served = plan.kind is Kind.PREEMPTED and self.index in plan.doomed
        self.trains_on = bool(self.standing) and (self.trains_on or served)
        self.advance(Trigger.ACTED)
        return None if self._counts_down else self._call_at_once(now, reserve)

    def leave(self) -> None:
        """The fit is over for this worker."""
        if self.state is State.ACTING and self.plan is not None:
            ends = outcome(self.plan, self.last)
            self.advance(Trigger.FINISH if ends is Trigger.FINISH else Trigger.LEAVE)

    def close(self, why: str) -> CallRequest:
        """Leaves; returns the message for the others and for its own watcher."""
        self.open = False
        return CallRequest(self.round, Failure(self.index, "", 0, why))

    # -- The watcher --------------------------------------------------------------------------------

    def hear(self, call: Call | Failure) -> None:
        """Takes the value of `call` in this round."""
        if not isinstance(call, Failure):
            self.advance(Trigger.CALL)  # Attention is on from here.
        elif self.open and call.member == self.index and self.state is State.LISTENING:
            self.advance(Trigger.FINISH)  # It has given up, see `finish`, and was the first in this round.
        elif self.open:
            self.lose()

    def answer(self, entered: int) -> At:
        """What to publish in this round; `entered` was read AFTER attention was set by `hear`."""
        if self.state is not State.ANSWERED:
            raise ProtocolError(f"Expected to answer a call. Received: none, being {self.state.value}.")
        if self.held is None and self.expected == self.round:
            # It may have entered the next boundary in this moment, and holds there: it has to look closer since then.
            entered = min(entered, self.expected_after)
        return answer(self.index, entered, self.held, bool(self.standing))

    def take(self, plan: Plan, now: float, reserve: float) -> CallRequest | None:
        """Takes the plan of this round; if that is aborted, calls again if need be."""
        if plan.abort is None:
            self.advance(Trigger.PLAN, plan)
            return None
        self.advance(Trigger.ABORT)
        if not self.open:
            # `close` found the call of that round taken: the others learn from the next one that nobody is here.
            return CallRequest(self.round, Failure(self.index, "", 0, "its fit was left during a round"))
        # During the countdown there is time; when that is used up, the countdown calls.
        return None if self._counts_down else self.call_to_leave(now, reserve)

    def lose(self) -> None:
        """No agreement is possible any more. A plan that is known is carried out all the same."""
        self.advance(Trigger.LOST)
