"""One fit of one process: notices come in, the workers agree on a boundary, the state is saved, the fit ends.

Three threads. The *main* thread trains and passes boundaries; while nothing happens a boundary costs it an
addition and a test. The *listener* turns notices into calls. The *watcher* sits in one blocking wait on the
key of the next call, answers it for the main thread, and brings the plan back. What the messages mean and
why nobody passes the target or waits for ever is told, and decided, in `alignment`.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable

from keras_preempt import alignment
from keras_preempt.alignment import Call, Decision, Event, Kind, Plan, Position, State
from keras_preempt.coordination import CoordinationLost, CoordinationTimeout, Coordinator
from keras_preempt.events import EventLog
from keras_preempt.notices import Notice

logger = logging.getLogger("keras_preempt")

ALIGNMENT_TIMEOUT = 30.0
"""Seconds that one message of a round may take. Answers come from watcher threads, not from training, so
that they take milliseconds; only a dead or stopped process takes longer."""

PLAN_MARGIN = 5.0
"""Seconds that the others wait longer for a plan than the caller waits for their answers."""

NEVER = sys.maxsize
"""A boundary that no fit reaches."""

ROUNDS_PER_REASON = 3
"""How often a reason calls a round again after one was aborted."""

LEADER_WAIT = 5.0
"""Seconds that the coordination leader waits for the others to leave first: without it their calls fail."""


class Runtime:
    """The rounds of one fit.

    Args:
        coordinator: How the workers talk to each other.
        events: Where to write what happened.
        fit: The number of this fit in this process; the same on every worker.
        clock: Returns seconds since 1970.

    Attributes:
        entered: Boundaries entered since fit began. The main thread adds one at each, BEFORE it reads
            `attention`.
        attention: Whether a boundary has to look closer. The watcher sets it BEFORE it reads `entered`.
        due: The boundary from which on the schedule of saves has to be looked at.
        notices: The notices that this process has got.
        fatal: Set once no agreement is possible any more: why.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        events: EventLog,
        fit: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.entered = 0
        self.attention = False
        self.due = NEVER
        self.notices: list[Notice] = []
        self.fatal: str | None = None
        self.hold_seconds = 0.0
        self._coordinator = coordinator
        self._events = events
        self._fit = fit
        self._clock = clock
        self._incarnation = 0
        self._open = False
        self._calls = 0
        self._called_round = -1
        self._served = 0
        self._expected_round = -1
        self._held: Position | None = None
        self._member = alignment.Member(index=coordinator.member)
        self._changed = threading.Condition()
        self._watcher = threading.Thread(target=self._watch, name="keras_preempt-watcher", daemon=True)

    # -- The beginning ------------------------------------------------------------------------------

    def start(self, incarnation: int) -> None:
        """Starts to take part in rounds. Notices that came before are acted on now."""
        with self._changed:
            self._incarnation = incarnation
            self._open = True
            waiting = list(self.notices)
        self._watcher.start()
        if waiting:
            self.expect()
            self._call(Kind.PREEMPTED, waiting[0].reason, waiting[0].deadline)

    def expect(self) -> None:
        """Makes the main thread hold at its next boundary, since a notice is on its way to `notify`.

        Called by the signal handler, in the main thread between two instructions: so it takes no lock
        and only sets two attributes. Without it, the main thread could begin further steps in the
        millisecond until the call comes back.
        """
        if self._open:
            self._expected_round = self._member.round
            self.attention = True

    def notify(self, notice: Notice) -> None:
        """Takes a notice. Called by the listener threads; never by a signal handler."""
        with self._changed:
            self.notices.append(notice)
            listening = self._open and self._member.state in (State.LISTENING, State.ANSWERED)
            over = self._open and self._member.state in (State.FINISHED, State.LEFT)
        if listening:
            self._call(Kind.PREEMPTED, notice.reason, notice.deadline)
        self._events.emit(
            "notice",
            source=notice.source,
            reason=notice.reason,
            received_at=notice.received_at,
            deadline=notice.deadline,
            boundary=self.entered,
        )
        if over:
            logger.info(
                "%s came when training was over already; there is nothing left to save.", notice.reason
            )
            return
        logger.warning(
            "%s: worker %d is about to be ended. All workers save at the same step.",
            notice.reason,
            self._coordinator.member,
        )

    @property
    def doomed(self) -> bool:
        """Whether this process is under notice."""
        return bool(self.notices)

    # -- The main thread ----------------------------------------------------------------------------

    def boundary(self, position: Position) -> Plan | None:
        """Looks closer at a boundary that the main thread has just entered.

        Returns:
            The plan, if this is where to act on it; None to train on.

        Raises:
            alignment.ProtocolError: The fit has passed the boundary that was agreed on.
        """
        return self._hold(position, last=False, asked=None)

    def finish(self, position: Position) -> Plan | None:
        """Enters the last boundary: training is over, and everyone has to know it in the same way.

        Returns:
            The plan under which to save the finished run; None if no agreement was possible.
        """
        self.entered += 1
        for _ in range(ROUNDS_PER_REASON):
            asked = self._member.round
            self._call(Kind.FINISHED, "training finished", None)
            plan = self._hold(position, last=True, asked=asked)
            if plan is not None or self.fatal is not None:
                return plan
        return None

    def _hold(self, position: Position, *, last: bool, asked: int | None) -> Plan | None:
        began = self._clock()
        # The watcher bounds every wait of a round; this bound only guards against a watcher that died.
        limit = began + 4 * ALIGNMENT_TIMEOUT
        with self._changed:
            self._held = position
            while True:
                decision = alignment.held_decision(self._member, self.entered, last=last, asked=asked)
                if decision is not Decision.HOLD and not self._call_on_its_way():
                    break
                if not self._changed.wait(max(0.0, limit - self._clock())):
                    self._lose(f"no decision came while the fit was held at {position}")
            self._held = None  # In one step with the decision: see alignment.
            plan = self._member.plan if decision is Decision.ACT else None
            if plan is not None:
                self._served = len(self.notices)
                self._advance(Event.REACHED)
            waited = self._clock() - began
            self.hold_seconds += waited
        if plan is not None:
            self._events.emit("hold", boundary=self.entered, seconds=waited, **_fields(position))
        return plan

    def _call_on_its_way(self) -> bool:
        """Whether this worker's own call has been announced by `expect` and is not back yet."""
        return self._member.state is State.LISTENING and self._expected_round == self._member.round

    def call_periodic(self) -> None:
        """Calls a round for a save after which training goes on; does nothing if a round stands already."""
        if self._open and self._member.state is State.LISTENING:
            self._call(Kind.PERIODIC, "the time to save has come", None)

    def acted(self) -> None:
        """The plan is carried out and training goes on, ready for the next round."""
        with self._changed:
            self._advance(Event.ACTED)
            came_meanwhile = self.notices[self._served :]
        if came_meanwhile:
            self.expect()
            self._call(Kind.PREEMPTED, came_meanwhile[0].reason, came_meanwhile[0].deadline)

    # -- The end ------------------------------------------------------------------------------------

    def leave(self, finished: bool) -> None:
        """The fit is over for this process. The coordination leader goes last, after at most 5 s."""
        with self._changed:
            if self._member.state is State.ACTING:
                self._advance(Event.FINISH if finished else Event.LEAVE)
            elif self._member.state is State.LISTENING and finished:
                self._advance(Event.FINISH)
        if not finished and self.fatal is None:
            try:
                self._wait_for_the_others()
            except (CoordinationTimeout, CoordinationLost) as error:
                logger.debug("The others did not say that they left: %s", error)
        self.close("the fit is over")

    def _wait_for_the_others(self) -> None:
        me, everyone = self._coordinator.member, range(self._coordinator.members)
        if me != 0:
            self._coordinator.put_if_absent(self._key("left", str(me)), "1")
            return
        limit = self._clock() + LEADER_WAIT
        for other in everyone:
            if other != me:
                self._coordinator.wait_for(self._key("left", str(other)), max(0.001, limit - self._clock()))

    def close(self, why: str) -> None:
        """Ends the watcher, whatever state the fit is in. Can be called twice.

        A watcher that still waits for a call is woken by one that says that this member has left; it is
        how the other members learn of it.
        """
        with self._changed:
            self._open = False
            self.attention = False
            self._changed.notify_all()
        if self._watcher.is_alive():
            # Where a call stands in this round the watcher is not waiting for one, and this does nothing.
            self._call(Kind.FAILED, why, None)
            # Every wait of the watcher ends by then.
            self._watcher.join(timeout=2 * ALIGNMENT_TIMEOUT + 10)

    # -- The watcher --------------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            while self._one_round():
                pass
        except (CoordinationLost, CoordinationTimeout) as error:
            with self._changed:
                self._lose(str(error))
        except alignment.ProtocolError as error:
            with self._changed:
                self._lose(f"the workers do not speak the same protocol: {error}")

    def _one_round(self) -> bool:
        call = Call.decode(self._coordinator.wait_for(self._key("call"), None))
        if call.kind is Kind.FAILED:
            with self._changed:
                if self._open:
                    self._lose(f"worker {call.member} has left its fit: {call.reason}")
            return False
        with self._changed:
            self._advance(Event.CALL, call=call)  # Sets attention, BEFORE `entered` is read: see alignment.
            answer = alignment.answer(
                self._coordinator.member, self.entered, self._held is not None, self._held, self.doomed
            )
        self._coordinator.put_if_absent(self._key("at", str(answer.member)), answer.encode())
        if call.member == self._coordinator.member:
            self._publish_plan(call)
        plan = self._await_plan(call)
        return self._take(plan)

    def _publish_plan(self, call: Call) -> None:
        began = self._clock()
        answers = []
        try:
            for member in range(self._coordinator.members):
                left = began + ALIGNMENT_TIMEOUT - self._clock()
                answers.append(
                    alignment.At.decode(self._coordinator.wait_for(self._key("at", str(member)), left))
                )
            attempt = f"{self._incarnation:05d}-{self._member.round:04d}"
            members = range(self._coordinator.members)
            plan = alignment.make_plan(call, answers, members, attempt)
        except CoordinationTimeout:
            plan = alignment.abort_plan(
                call, f"worker {len(answers)} did not answer within {ALIGNMENT_TIMEOUT:.0f} s"
            )
        self._coordinator.put_if_absent(self._key("plan"), plan.encode())

    def _await_plan(self, call: Call) -> Plan:
        try:
            text = self._coordinator.wait_for(self._key("plan"), ALIGNMENT_TIMEOUT + PLAN_MARGIN)
        except CoordinationTimeout:
            # Plan or abort: whatever is inserted first holds for everyone.
            plan = alignment.abort_plan(call, f"worker {call.member} called, and then made no plan")
            self._coordinator.put_if_absent(self._key("plan"), plan.encode())
            text = self._coordinator.wait_for(self._key("plan"), ALIGNMENT_TIMEOUT)
        return Plan.decode(text)

    def _take(self, plan: Plan) -> bool:
        """Brings the plan to the main thread; returns whether there will be another round."""
        if plan.abort is not None:
            return self._take_abort(plan.abort)
        with self._changed:
            self._advance(Event.PLAN, plan=plan)
            finished_round = (
                self._member.round - 1
            )  # All have answered in this one, so all have left that one.
        self._events.emit(
            "plan",
            target=plan.target,
            reason=plan.kind.value,
            writers=list(plan.writers),
            doomed=list(plan.doomed),
            attempt=plan.attempt,
        )
        with self._changed:
            while self._open and self._member.state in (State.PLANNED, State.ACTING):
                self._changed.wait()
            again = self._open and self._member.state is State.LISTENING
        if again and finished_round >= 0 and plan.writers and plan.writers[0] == self._coordinator.member:
            self._coordinator.delete(alignment.key(self._fit, finished_round))
        return again

    def _take_abort(self, why: str) -> bool:
        self._events.emit("abort", reason=why)
        logger.error("The workers could not agree on a step to save at: %s. Training goes on.", why)
        with self._changed:
            self._advance(Event.ABORT)
            closed, again = not self._open, self.doomed
        if closed:
            # close() found this round's call taken: the others learn from the next one that nobody is here.
            self._call(Kind.FAILED, "its fit was left during a round", None)
            return False
        if again:
            self._call(Kind.PREEMPTED, self.notices[0].reason, self.notices[0].deadline)
        return True

    # -- Shared -------------------------------------------------------------------------------------

    def _call(self, kind: Kind, reason: str, deadline: float | None) -> None:
        if kind is Kind.PREEMPTED and self._called_round != self._member.round:
            self._called_round = self._member.round
            self._calls += 1
            if self._calls > ROUNDS_PER_REASON:
                logger.error("No agreement after %d rounds; this worker stops asking.", ROUNDS_PER_REASON)
                with self._changed:
                    self._expected_round = -1
                    self._changed.notify_all()
                return
        call = Call(self._coordinator.member, kind, reason, deadline)
        try:
            self._coordinator.put_if_absent(self._key("call"), call.encode())
        except CoordinationLost as error:
            with self._changed:
                self._lose(str(error))

    def _advance(self, event: Event, *, call: Call | None = None, plan: Plan | None = None) -> None:
        self._member = alignment.advance(self._member, event, call=call, plan=plan)
        self.attention = self._member.attention
        self._changed.notify_all()

    def _lose(self, why: str) -> None:
        """No agreement is possible any more; called with the lock held."""
        if self.fatal is None and self._open:
            self.fatal = why
            self._events.emit("error", reason=why)
            logger.error(
                "No checkpoint can be agreed on any more in this fit: %s. Training's own error follows if "
                "another worker is gone; the last committed checkpoint is kept.",
                why,
            )
        if self._member.state not in (State.LEFT, State.FINISHED, State.LOST):
            self._advance(Event.LOST)
        self._changed.notify_all()

    def _key(self, *rest: str) -> str:
        return alignment.key(self._fit, self._member.round, *rest)


def _fields(position: Position) -> dict[str, object]:
    return {"epoch": position.epoch, "phase": position.phase, "batch": position.batch, "step": position.step}
