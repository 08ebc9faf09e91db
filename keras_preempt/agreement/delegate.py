"""One worker in the rounds of one fit: a `Member`, the lock that guards it, and the thread that answers for it.

The *watcher* thread sits in one blocking wait on the key of the next call, answers it for the main thread, and brings
the plan back. What the messages mean and why nobody passes the target or waits forever is explained in `alignment`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from keras_preempt.agreement.alignment import Decision, State, abort_plan, make_plan
from keras_preempt.agreement.coordinator import CoordinationLost, CoordinationTimeout, Coordinator
from keras_preempt.agreement.grace import Notice, Standing
from keras_preempt.agreement.member import (
    EXPECTED_WITHIN,
    ROUNDS_PER_REASON,
    CallRequest,
    Member,
    NoticeEffect,
    Withdrawn,
)
from keras_preempt.agreement.messages import At, Call, Failure, Plan, Position, ProtocolError, key
from keras_preempt.process.garbage import GarbageCollection

logger = logging.getLogger("keras_preempt")

ALIGNMENT_TIMEOUT = 30.0
"""Seconds that one message of a round may take. Answers come from watcher threads, not from training, so
that they take milliseconds; only a dead or stopped process takes longer."""

PLAN_MARGIN = 5.0
"""Seconds by which the others wait longer for a plan than the caller waits for their answers."""

LEADER_WAIT = 5.0
"""Seconds that the coordination leader waits for the others to leave first: without it their calls fail."""


class MainThread(Protocol):
    """What a fit shares with its watcher; the attributes without a lock, see `alignment`."""

    entered: int
    """Boundaries entered since the fit began. The main thread adds one at each, BEFORE it reads `attention`."""

    attention: bool
    """Whether a boundary has to look closer. The watcher sets it BEFORE it reads `entered`. Other threads may set it
    but must not clear it: the watcher may have set it a moment ago."""

    every_boundary: bool  # Whether to look closer at every boundary, whatever happens.

    def reserve(self) -> float:
        """Seconds before a deadline by which the last round has to be called."""

    def aligned(self, seconds: float) -> None:
        """A round took this long, from its call to its plan."""


class Delegate:
    """Takes part in the rounds of one fit: number `fit` in this process, the same on every worker.

    `tell` writes an event. `changed` guards all that the threads share, except what `MainThread` has, and is notified
    whenever that changes. `fatal` says why no agreement is possible any more. `on_call` is called by the watcher with
    each call, before it is answered.
    """

    def __init__(
        self,
        main: MainThread,
        coordinator: Coordinator,
        fit: int,
        grace: float | None,
        tell: Callable[..., None],
        clock: Callable[[], float],
    ) -> None:
        self.changed = threading.Condition()
        self.fatal: str | None = None
        self.on_call: Callable[[Call], object] = lambda call: None
        self._main = main
        self._coordinator = coordinator
        self._fit = fit
        self._tell = tell
        self._clock = clock
        self.member = Member(coordinator.member, Standing(grace))
        self._stopped = False
        self._garbage = GarbageCollection()
        self._watcher = threading.Thread(target=self._watch, name="keras_preempt-watcher", daemon=True)

    def start(self) -> None:
        """Takes part in rounds from now on. Notices that came before are acted on now."""
        self.ask(self.member.start)
        self._watcher.start()

    def ask(self, step: Callable[[float, float], CallRequest | None]) -> CallRequest | None:
        """Has the member take a step (one of its methods), and sends and returns the call that it asks for."""
        with self.changed:
            request = step(self._clock(), self._main.reserve())
            self.update()
        self._put(request)
        return request

    # -- Notices ------------------------------------------------------------------------------------

    def notify(self, notice: Notice) -> NoticeEffect:
        """Takes a notice, calls for it if need be, and returns what it means."""
        with self.changed:
            heard, request = self.member.notify(notice, self._clock(), self._main.reserve())
            self.update()  # The countdown has to look at its time again.
        self._put(request)
        return heard

    def interrupt(self) -> NoticeEffect:
        """The user interrupts this worker: calls for that if need be, and returns what it means."""
        with self.changed:
            heard, request = self.member.interrupt(self._clock(), self._main.reserve())
            self.update()
        self._put(request)
        return heard

    def withdraw(self, notice: Notice) -> Withdrawn:
        """Takes back a notice, and returns what that means."""
        with self.changed:
            withdrawn = self.member.withdraw(notice)
            self.update()
        return withdrawn

    def due(self) -> float | None:
        """When the countdown calls, as it looks now; None for never, or not before something changes."""
        with self.changed:
            return self.member.due(self._main.reserve())

    # -- The main thread ----------------------------------------------------------------------------

    def hold(self, position: Position) -> Plan | None:
        """Holds the main thread at a boundary; returns the plan to act on here, or None. May raise ProtocolError."""
        # The watcher bounds every wait of a round; this bound only guards against a watcher that died.
        limit = self._clock() + 4 * ALIGNMENT_TIMEOUT
        with self.changed:
            self.member.hold(position)
            while (decision := self.member.let_go(self._main.entered)) is Decision.HOLD:
                if self._clock() >= limit:
                    self._lose(f"no decision came while the fit was held at {position}")
                else:
                    self._wait_for_change(limit)
            self.update()
            return self.member.plan if decision is Decision.ACT else None

    def finish(self, position: Position) -> Plan | None:
        """Holds the main thread at the last boundary; returns None if no agreement is possible."""
        with self.changed:
            # A signal came in the last step, and its notice is not here yet: the plan should know of it.
            limit = self._clock() + ALIGNMENT_TIMEOUT
            while self.member.awaits_call and self._clock() < limit:
                self._wait_for_change(limit)
        plan = None
        while plan is None:
            with self.changed:
                request = self.member.finish()
            if request is None:
                return None
            self._put(request)
            plan = self.hold(position)
        return plan

    def leave(self, seconds: float | None) -> None:
        """Called when the fit is over. The coordination leader leaves last, after at most 5 s, or `seconds` if less."""
        with self.changed:
            self.member.leave()
            self.update()
        if self.member.last or self.fatal is not None:
            return
        number, me = self.member.round, self.member.index
        try:
            if me != 0:
                self._coordinator.put_if_absent(self._key(number, "left", me), "1")
                return
            limit = self._clock() + (LEADER_WAIT if seconds is None else min(LEADER_WAIT, seconds))
            for other in range(1, self._coordinator.members):
                wait = max(0.001, limit - self._clock())
                self._coordinator.wait_for(self._key(number, "left", other), wait)
        except (CoordinationTimeout, CoordinationLost) as error:
            logger.debug("The others did not say that they left: %s", error)

    def close(self, why: str) -> None:
        """Ends the watcher, whatever state the fit is in. Can be called twice.

        If it still waits for a call, the message that this member has left wakes it, and tells the other members.
        """
        with self.changed:
            request = self.member.close(why)
            self._main.attention = False
            self._garbage.hold_off(held=False)
            self.changed.notify_all()
        if self._watcher.is_alive():
            # Does nothing if there is a call in this round: then the watcher does not wait for one.
            told = self._put(request)
            # Every wait of the watcher ends by then, except that for a call if the service has not taken ours.
            self._watcher.join(timeout=2 * ALIGNMENT_TIMEOUT + 10 if told else 1)

    # -- The watcher --------------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            while self._one_round():
                pass
        except (CoordinationLost, CoordinationTimeout) as error:
            self._lose(str(error))
        except ProtocolError as error:
            self._lose(f"the workers do not speak the same protocol: {error}")

    def _one_round(self) -> bool:
        number = self.member.round
        text = self._coordinator.wait_for(self._key(number, "call"), None)
        call = Failure.decode(text) or Call.decode(text)
        began = self._clock()
        if isinstance(call, Call):
            self.on_call(call)
        with self.changed:
            self.member.hear(call)
            self.update()  # Sets attention, BEFORE `entered` is read: see alignment.
            if isinstance(call, Failure):
                own = call.member == self.member.index
                self._say_lost(str(call) if own else f"worker {call.member} has left its fit: {call}")
                return False
            answer = self.member.answer(self._main.entered)
        self._coordinator.put_if_absent(self._key(number, "at", answer.member), answer.encode())
        if call.member == self.member.index:
            self._publish_plan(number, call)
        plan = self._wait_for_plan(number, call)
        self._main.aligned(self._clock() - began)
        with self.changed:
            request = self.member.take(plan, self._clock(), self._main.reserve())
            self.update()
        if plan.abort is not None:
            self._tell("abort", reason=plan.abort)
            logger.error(
                "The workers could not agree on a step to save at: %s. Training continues.", plan.abort
            )
            self._put(request)
            return self.member.open
        self._tell(
            "plan",
            target=plan.target,
            reason=plan.kind.value,
            writers=list(plan.writers),
            doomed=list(plan.doomed),
            goes_on=plan.goes_on,
        )
        return self._carried_out(number, plan)

    def _carried_out(self, number: int, plan: Plan) -> bool:
        """Waits until the main thread has carried the plan out; returns whether there will be another round."""
        with self.changed:
            while self.member.open and self.member.state in (State.PLANNED, State.ACTING):
                self.changed.wait()
            again = self.member.open and self.member.state is State.LISTENING
        if again and number > 0 and plan.writers[0] == self.member.index:
            # All have answered in this round, so all have left the one before.
            self._coordinator.delete(self._key(number - 1))
        return again

    def _publish_plan(self, number: int, call: Call) -> None:
        """Gathers every answer and inserts the plan; an aborted one if a member does not answer."""
        members = range(self._coordinator.members)
        limit = self._clock() + ALIGNMENT_TIMEOUT
        answers: list[At] = []
        try:
            for member in members:
                left = max(0.001, limit - self._clock())
                answers.append(At.decode(self._coordinator.wait_for(self._key(number, "at", member), left)))
            plan = make_plan(call, answers, members)
        except CoordinationTimeout:
            plan = abort_plan(call, f"worker {len(answers)} did not answer within {ALIGNMENT_TIMEOUT:.0f} s")
        self._coordinator.put_if_absent(self._key(number, "plan"), plan.encode())

    def _wait_for_plan(self, number: int, call: Call) -> Plan:
        """Aborts the round if no plan comes; raises CoordinationTimeout if not even that gets through."""
        try:
            text = self._coordinator.wait_for(self._key(number, "plan"), ALIGNMENT_TIMEOUT + PLAN_MARGIN)
        except CoordinationTimeout:
            # Plan or abort: whatever is inserted first holds for everyone.
            plan = abort_plan(call, f"worker {call.member} called, and then made no plan")
            self._coordinator.put_if_absent(self._key(number, "plan"), plan.encode())
            text = self._coordinator.wait_for(self._key(number, "plan"), ALIGNMENT_TIMEOUT)
        return Plan.decode(text)

    def _key(self, number: int, *rest: str | int) -> str:
        return key(self._fit, number, *rest)

    # -- Shared -------------------------------------------------------------------------------------

    def update(self) -> None:
        """Follows a change of the member, with the lock held. Only this clears `attention`."""
        self._main.attention = self.member.attention or self._main.every_boundary
        if self.member.awaits_call:
            # A signal handler may have run since: it announces the notice first, then sets `attention`.
            self._main.attention = True
        self._garbage.hold_off(held=self.member.open and self.member.in_round)
        self.changed.notify_all()

    def _wait_for_change(self, limit: float) -> None:
        """Waits until something changes, or an announced notice is late; with the lock held."""
        now = self._clock()
        if self.member.expect_no_more(now):
            self.update()
            logger.error(
                "A signal was announced, and no notice of it has come within %.0f s. Training continues; the next "
                "signal is listened for again.",
                EXPECTED_WITHIN,
            )
            return
        until = self.member.expected_until
        self.changed.wait(max(0.0, (limit if until is None else min(limit, until)) - now))

    def _put(self, request: CallRequest | None) -> bool:
        """Sends a call; returns whether the service has answered."""
        stopped = self.member.stopped_asking
        if stopped and not self._stopped:
            logger.error("No agreement after %d rounds; this worker stops asking.", ROUNDS_PER_REASON)
        self._stopped = stopped
        if request is None:
            return True
        try:
            self._coordinator.put_if_absent(self._key(request.round, "call"), request.call.encode())
        except CoordinationLost as error:
            self._lose(str(error))
            return False
        return True

    def _lose(self, why: str) -> None:
        """No agreement is possible any more."""
        with self.changed:
            self.member.lose()
            self._say_lost(why)
            self.update()

    def _say_lost(self, why: str) -> None:
        if self.fatal is not None or not self.member.open:
            return
        self.fatal = why
        self._tell("error", reason=why)
        logger.error(
            "No checkpoint can be agreed on any more in this fit: %s. Training's own error follows if "
            "another worker is gone; the last committed checkpoint is kept.",
            why,
        )
