"""One fit of one process: notices come in, the workers agree on a boundary, the state is saved, the fit ends.

Four threads. The *main* thread trains and passes boundaries; while nothing happens a boundary costs it an
addition and a test. The *listener* turns notices into calls. The *watcher* sits in one blocking wait on the
key of the next call, answers it for the main thread, and brings the plan back. What the messages mean and
why nobody passes the target or waits for ever is told, and decided, in `alignment`. The *countdown*, there
only after a notice that leaves time to train on, calls the last round when that time is used up.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable

from keras_preempt.agreement import alignment
from keras_preempt.agreement.alignment import Call, Decision, Event, Kind, Plan, Position, State
from keras_preempt.agreement.coordinator import CoordinationLost, CoordinationTimeout, Coordinator
from keras_preempt.agreement.rounds import ALIGNMENT_TIMEOUT, Rounds
from keras_preempt.notices import Notice
from keras_preempt.report.events import EventLog
from keras_preempt.training.countdown import Countdown
from keras_preempt.training.grace import has_room, last_call_at, too_late
from keras_preempt.training.pace import Pace
from keras_preempt.training.standing import Standing

logger = logging.getLogger("keras_preempt")

NEVER = sys.maxsize
"""A boundary that no fit reaches."""

ROUNDS_PER_REASON = 3
"""How often a reason calls a round again after one was aborted."""

EXPECTED_WITHIN = 2.0
"""Seconds within which a notice follows the signal handler that has announced it, or it does not come at all."""


class Runtime:
    """The rounds of one fit.

    Args:
        coordinator: How the workers talk to each other.
        events: Where to write what happened.
        fit: The number of this fit in this process; the same on every worker.
        grace: See `standing.Standing`.
        on_end_known: Called with the moment at which this machine goes, by `clock`, or None, whenever that changes.
        clock: Returns monotonic seconds, as `Notice.heard_at` has them. Nobody sets this clock, so that whatever is
            waited for or counted down is; the clock of the day goes into the events only.

    Attributes:
        entered: Boundaries entered since fit began. The main thread adds one at each, BEFORE it reads
            `attention`.
        attention: Whether a boundary has to look closer. The watcher sets it BEFORE it reads `entered`. Who
            else wants it may set it, and never clears it: the watcher may have set it a moment ago.
        every_boundary: Whether to look closer at every boundary, whatever happens.
        due: The boundary from which on the schedule of saves has to be looked at.
        notices: The notices that this process has got, also those that were withdrawn since.
        pace: How fast this fit moves and saves.
        at_risk: Returns what is lost if no save succeeds from now on, in words.
        announcement: Returns what a notice means, in words, given how much time is left, such as " in 30 s".
        fatal: Set once no agreement is possible any more: why.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        events: EventLog,
        fit: int,
        grace: float | None = None,
        on_end_known: Callable[[float | None], None] = lambda ends_at: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.entered = 0
        self.attention = False
        self.every_boundary = False
        self.due = NEVER
        self.notices: list[Notice] = []
        self.fatal: str | None = None
        self.hold_seconds = 0.0
        self._held_before = 0.0  # In this round, at boundaries before the target.
        self.pace = Pace(clock)
        self.at_risk: Callable[[], str] = lambda: "what was trained since the last save"
        self.announcement: Callable[[Notice, str], str] = lambda notice, left: (
            f"{notice.reason}: worker {coordinator.member} is about to be ended{left}. All workers save at the same "
            "step."
        )
        self._coordinator = coordinator
        self._events = events
        self._rounds = Rounds(coordinator, fit, clock)
        self._on_end_known = on_end_known
        self._clock = clock
        self._standing = Standing(grace)
        self._trains_on = False  # Saved for the notices that stand, with time left: the countdown runs.
        self._open = False
        self._calls = 0
        self._called_round = -1
        self._expected_round = -1
        self._expected_at = 0.0
        self._held: Position | None = None
        self._member = alignment.Member(index=coordinator.member)
        self._changed = threading.Condition()
        self._countdown = Countdown(self._changed, self._due, self._call_for_notice, clock)
        self._watcher = threading.Thread(target=self._watch, name="keras_preempt-watcher", daemon=True)

    # -- The beginning ------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts to take part in rounds. Notices that came before are acted on now."""
        with self._changed:
            self._open = True
            waiting = bool(self._standing)
        self._watcher.start()
        if waiting:
            self.expect()
            self._call_for_notice()

    def expect(self) -> None:
        """Makes the main thread hold at its next boundary, since a notice is on its way to `notify`.

        Called by the signal handler, in the main thread between two instructions: so it takes no lock
        and only sets attributes. Without it, the main thread could begin further steps in the
        millisecond until the call comes back.
        """
        if (
            self._open and not self._trains_on
        ):  # During the countdown a further notice need not end in a call.
            self._expected_at = self._clock()
            self._expected_round = self._member.round
            self.attention = True

    def looked(self) -> None:
        """Whoever has set `attention` from outside is content: boundaries are looked at only if they have to be."""
        with self._changed:
            self._look()

    def notify(self, notice: Notice) -> None:
        """Takes a notice. Called by the listener threads; never by a signal handler."""
        with self._changed:
            self.notices.append(notice)
            new = notice.hint or self._standing.add(notice)
            listening = self._open and self._member.state in (State.LISTENING, State.ANSWERED)
            over = self._open and self._member.state in (State.FINISHED, State.LEFT)
            call = listening and not notice.hint and not self._trains_on
            self._changed.notify_all()  # The countdown has to look at its time again.
        if call:
            self._call_for_notice()
        elif notice.hint and listening:
            self._call(Kind.PERIODIC, notice.reason, None)
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
        elif notice.hint:
            logger.warning("%s: saving now, in case a notice follows. Training goes on.", notice.reason)
        elif not new:
            logger.info("%s changes nothing: an earlier notice leaves less time.", notice.reason)
        else:
            self._tell(notice)
            self._on_end_known(self._standing.ends_at)

    def _tell(self, notice: Notice) -> None:
        now = self._clock()
        left = self._standing.gone_by - now
        logger.warning("%s", self.announcement(notice, f" in {left:.0f} s" if left > 0 else ""))
        ends_at = self._standing.ends_at
        if ends_at is None:
            return
        step, save = self.pace.slowest(self.entered), self.pace.save_seconds
        late = too_late(ends_at, now, save, step)
        if late > 0:
            logger.error(
                "This notice comes too late: the next step is expected to take %.1f s and saving it %.1f s, which "
                "is %.1f s more than there is. If that comes true, %s is lost.",
                step,
                save,
                late,
                self.at_risk(),
            )

    def stand(self, at: Position | None) -> int:
        """Makes ready for `heard_more_than`, before whoever sends a notice is asked to; for drills.

        Args:
            at: The boundary that the main thread has entered and is about to look closer at, if it is what will wait:
                a round that is called meanwhile stops it there, and not only at the next boundary. None elsewhere.

        Returns:
            How many notices have come so far.
        """
        with self._changed:
            self._held = at or self._held
            return len(self.notices)

    def heard_more_than(self, count: int, timeout: float, at: Position | None) -> bool:
        """Waits until more notices than `count` have come, for at most `timeout` seconds; whether they have."""
        with self._changed:
            heard = self._changed.wait_for(lambda: len(self.notices) > count, timeout)
            if not heard and at is not None:
                self._held = None
            return heard

    def withdraw(self, notice: Notice) -> None:
        """A source says that what it announced will not happen. A call that was made already stands."""
        with self._changed:
            if not self._standing.withdraw(notice):
                return
            still = bool(self._standing)
            called = self._open and self._member.plan is not None and not self._member.plan.goes_on
            self._trains_on = self._trains_on and still
            self._look()
            self._changed.notify_all()
            ends_at = self._standing.ends_at
        self._on_end_known(ends_at)
        self._events.emit("withdrawn", source=notice.source, reason=notice.reason, boundary=self.entered)
        if still:
            logger.warning("%s was withdrawn; another notice stands.", notice.reason)
        elif called:
            logger.warning("%s was withdrawn, but the workers have agreed to leave already.", notice.reason)
        else:
            logger.warning("%s was withdrawn: training goes on, nothing is lost.", notice.reason)

    @property
    def doomed(self) -> bool:
        """Whether this process is under notice."""
        return bool(self._standing)

    @property
    def left(self) -> float | None:
        """Seconds until this machine goes; None if nobody has said when that is."""
        with self._changed:
            ends_at = self._standing.ends_at
        return None if ends_at is None else ends_at - self._clock()

    @property
    def trains_on_for(self) -> float | None:
        """Seconds until the countdown of this process calls, as it looks now; None if there is no countdown."""
        with self._changed:
            due = self._due()
        return None if due is None else max(0.0, due - self._clock())

    def _due(self) -> float | None:
        """When the countdown calls; None for never, or not before something changes. With the lock held."""
        if not (self._open and self._trains_on and self._standing and self._member.state is State.LISTENING):
            return None
        if self._called_round == self._member.round:
            return None  # On its way.
        return last_call_at(self._standing.gone_by, self.pace.reserve(self.entered))

    def _call_for_notice(self) -> None:
        """Calls for the notices that stand: to save and train on if there is time, else to save and leave."""
        with self._changed:
            if not self._standing:
                return
            first, gone_by = self._standing.first, self._standing.gone_by
            kind = Kind.DEADLINE if self._trains_on else Kind.PREEMPTED
            room = has_room(gone_by, self._clock(), self.pace.reserve(self.entered))
            ends_at = self._standing.ends_at
        # Other machines have another monotonic clock.
        deadline = None if ends_at is None else time.time() + ends_at - self._clock()
        self._call(kind, first.reason, deadline, goes_on=room and kind is Kind.PREEMPTED)

    # -- The main thread ----------------------------------------------------------------------------

    def boundary(self, position: Position) -> Plan | None:
        """Looks closer at a boundary that the main thread has just entered.

        Returns:
            The plan, if this is where to act on it; None to train on.

        Raises:
            alignment.ProtocolError: The fit has passed the boundary that was agreed on.
        """
        if self.pace.enter(self.entered) and self._trains_on:
            with self._changed:
                self._changed.notify_all()  # The reserve has grown.
        plan = self._hold(position, last=False, asked=None)
        if plan is None:
            self.pace.leave(self.entered)
        return plan

    def finish(self, position: Position) -> Plan | None:
        """Enters the last boundary: training is over, and everyone has to know it in the same way.

        Returns:
            The plan under which to save the finished run; None if no agreement was possible.
        """
        self.entered += 1
        with self._changed:
            # A signal came in the last step, and its notice is not here yet: the plan should know of it.
            limit = self._clock() + ALIGNMENT_TIMEOUT
            while self._call_on_its_way() and self._clock() < limit:
                self._wait_for_call(limit)
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
                if self._clock() >= limit:
                    self._lose(f"no decision came while the fit was held at {position}")
                elif self._call_on_its_way():
                    self._wait_for_call(limit)
                else:
                    self._changed.wait(max(0.0, limit - self._clock()))
            self._held = None  # In one step with the decision: see alignment.
            plan = self._member.plan if decision is Decision.ACT else None
            if plan is not None:
                self._advance(Event.REACHED)
            waited = self._clock() - began
            self.hold_seconds += waited
        if plan is None:
            self._held_before += waited
        else:
            self._events.emit(
                "hold",
                boundary=self.entered,
                seconds=waited,
                before=self._held_before,
                goes_on=plan.goes_on,
                **_fields(position),
            )
            self._held_before = 0.0
        return plan

    def _call_on_its_way(self) -> bool:
        """Whether this worker's own call has been announced by `expect` and is not back yet."""
        return self._member.state is State.LISTENING and self._expected_round == self._member.round

    def _wait_for_call(self, limit: float) -> None:
        """Waits for a change while a call is on its way, and expects it no more once it is late; with the lock held."""
        if self._called_round == self._member.round:  # It was heard, and is being told to the others.
            self._changed.wait(max(0.0, limit - self._clock()))
            return
        late_at = self._expected_at + EXPECTED_WITHIN
        if self._clock() < late_at:
            self._changed.wait(max(0.0, min(limit, late_at) - self._clock()))
            return
        self._expected_round = -1
        self._look()
        logger.error(
            "A signal was announced, and no notice of it has come within %.0f s. Training goes on; the next signal is "
            "listened for again.",
            EXPECTED_WITHIN,
        )

    def call_periodic(self) -> None:
        """Calls a round for a save after which training goes on; does nothing if a round stands already."""
        if self._open and self._member.state is State.LISTENING:
            self._call(Kind.PERIODIC, "the time to save has come", None)

    def acted(self) -> None:
        """The plan is carried out and training goes on, ready for the next round."""
        with self._changed:
            plan = self._member.plan
            self._calls = 0
            # A notice of which that plan knew is served: what is left to do for it is the last call.
            served = (
                plan is not None and plan.kind is Kind.PREEMPTED and self._coordinator.member in plan.doomed
            )
            self._trains_on = bool(self._standing) and (self._trains_on or served)
            self._advance(Event.ACTED)
            unserved = bool(self._standing) and not self._trains_on
            if self._trains_on:
                self._countdown.start()
        if unserved:
            self.expect()
            self._call_for_notice()
        self.pace.leave(self.entered)

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
                self._rounds.leave_last(self._member.round, self.left)
            except (CoordinationTimeout, CoordinationLost) as error:
                logger.debug("The others did not say that they left: %s", error)
        self.close("the fit is over")

    def close(self, why: str) -> None:
        """Ends the watcher, whatever state the fit is in. Can be called twice.

        A watcher that still waits for a call is woken by one that says that this member has left; it is
        how the other members learn of it.
        """
        with self._changed:
            self._open = False
            self.attention = False
            self._changed.notify_all()
        self._countdown.stop()
        if self._watcher.is_alive():
            # Where a call stands in this round the watcher is not waiting for one, and this does nothing.
            told = self._call(Kind.FAILED, why, None)
            # Every wait of the watcher ends by then; but for one that only the call ends, which nobody has taken.
            self._watcher.join(timeout=2 * ALIGNMENT_TIMEOUT + 10 if told else 1)

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
        number = self._member.round
        call = self._rounds.wait_for_call(number)
        if call.kind is Kind.FAILED:
            with self._changed:
                if self._open:
                    self._lose(f"worker {call.member} has left its fit: {call.reason}")
            return False
        began = self._clock()
        with self._changed:
            self._advance(Event.CALL, call=call)  # Sets attention, BEFORE `entered` is read: see alignment.
            answer = alignment.answer(
                self._coordinator.member, self.entered, self._held is not None, self._held, self.doomed
            )
        self._rounds.answer(number, answer)
        if call.member == self._coordinator.member:
            self._rounds.publish_plan(number, call)
        plan = self._rounds.wait_for_plan(number, call)
        self.pace.aligned(self._clock() - began)
        return self._take(plan)

    def _take(self, plan: Plan) -> bool:
        """Brings the plan to the main thread; returns whether there will be another round."""
        if plan.abort is not None:
            return self._take_abort(plan.abort)
        with self._changed:
            self._advance(Event.PLAN, plan=plan)
            finished_round = self._member.round - 1  # All have answered in this one, so all have left that.
        self._events.emit(
            "plan",
            target=plan.target,
            reason=plan.kind.value,
            writers=list(plan.writers),
            doomed=list(plan.doomed),
            goes_on=plan.goes_on,
        )
        with self._changed:
            while self._open and self._member.state in (State.PLANNED, State.ACTING):
                self._changed.wait()
            again = self._open and self._member.state is State.LISTENING
        if again and finished_round >= 0 and plan.writers and plan.writers[0] == self._coordinator.member:
            self._rounds.forget(finished_round)
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
            self._call_for_notice()
        return True

    # -- Shared -------------------------------------------------------------------------------------

    def _call(self, kind: Kind, reason: str, deadline: float | None, *, goes_on: bool = False) -> bool:
        """Calls a round, unless one was called already; returns whether the service has answered."""
        if kind in (Kind.PREEMPTED, Kind.DEADLINE) and self._called_round != self._member.round:
            self._called_round = self._member.round
            self._calls += 1
            if self._calls > ROUNDS_PER_REASON:
                logger.error("No agreement after %d rounds; this worker stops asking.", ROUNDS_PER_REASON)
                with self._changed:
                    self._expected_round = -1
                    self._changed.notify_all()
                return True
        call = Call(self._coordinator.member, kind, reason, deadline, goes_on)
        try:
            self._rounds.call(self._member.round, call)
        except CoordinationLost as error:
            with self._changed:
                self._lose(str(error))
            return False
        return True

    def _advance(self, event: Event, *, call: Call | None = None, plan: Plan | None = None) -> None:
        self._member = alignment.advance(self._member, event, call=call, plan=plan)
        self._look()
        self._changed.notify_all()

    def _look(self) -> None:
        """Decides whether boundaries are looked at; with the lock held, and the only place that says no."""
        # During the countdown they are, since the reserve depends on the slowest step.
        self.attention = (
            self._member.attention or self._trains_on or self.every_boundary or self._call_on_its_way()
        )

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


def _fields(position: Position) -> dict[str, object]:
    return {"epoch": position.epoch, "phase": position.phase, "batch": position.batch, "step": position.step}
