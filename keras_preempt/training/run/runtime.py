"""One fit of one process: notices come in, the workers agree on a boundary, the state is saved, the fit ends.

Four threads. The *main* thread trains and passes boundaries; until a notice arrives a boundary costs it an
addition and a test. The *listener* turns notices into calls. The *watcher* takes part in the rounds
(`agreement.delegate`). The *countdown*, there only after a notice that leaves time to train on, calls the last
round when that time is used up. What each of them may do, and when, is decided in `agreement.member`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, MutableSequence
from dataclasses import asdict

from keras_preempt.agreement.coordinator import Coordinator
from keras_preempt.agreement.delegate import Delegate
from keras_preempt.agreement.grace import Standing, longest_wait, too_late
from keras_preempt.agreement.member import NoticeEffect, Withdrawn
from keras_preempt.agreement.messages import Call, Plan, Position
from keras_preempt.notices import Notice
from keras_preempt.report.events import EventLog
from keras_preempt.training.save.pace import Pace
from keras_preempt.training.save.schedule import NEVER

logger = logging.getLogger("keras_preempt")


class Runtime:
    """The notices of one fit, as one worker gets them, and the main thread's way through the boundaries.

    `fit` is the number of this fit in this process, the same on every worker; `grace` see `grace.Standing`.
    `on_end_known` is called with the moment at which this machine goes, by `clock`, or None, whenever that changes.
    `clock` returns monotonic seconds: everything that is waited for or counted down goes by it, and the time of day
    goes into the events only. `entered`, `attention` and `every_boundary` are those of `delegate.MainThread`.

    Attributes:
        notices: The notices that this process has got, also those that were withdrawn since.
        at_risk: Returns what is lost if no save succeeds from now on, in words.
        announcement: Returns what a notice means, in words, given how much time is left, such as " in 30 s".
        due: The boundary from which on the schedule of saves has to be looked at.
        count: Its first element shows `entered` to whoever watches this process: see `process.heartbeat`.
        hold_seconds: How long the main thread was held, all in all.
        ends_early: Whether it leaves before the time that is left is used up, as nothing can count it.
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
        self.count: MutableSequence[int] = [0]
        self.attention = self.every_boundary = self.started = self.ends_early = False
        self.due = NEVER
        self.hold_seconds = 0.0
        self.notices: list[Notice] = []
        self.pace = Pace(clock)
        self.at_risk: Callable[[], str] = lambda: "what was trained since the last save"
        self.announcement: Callable[[Notice, str], str] = lambda notice, left: (
            f"{notice.reason}: worker {coordinator.member} is about to be ended{left}. All workers save at the same "
            "step."
            if coordinator.members > 1
            else f"{notice.reason}: this process is about to be ended{left}. It saves before that."
        )
        self._together = coordinator.members > 1
        self._events = events
        self._on_end_known = on_end_known
        self._clock = clock
        self._held_before = 0.0  # In this round, at boundaries before the target.
        self._countdown: threading.Thread | None = None
        self.aligned = self.pace.aligned
        self._delegate = Delegate(self, coordinator, fit, grace, events.emit, clock)

    def reserve(self) -> float:
        return self.pace.reserve(self.entered)

    # -- Notices, in the listener's thread ------------------------------------------------------------

    def expect(self) -> None:
        """Makes the main thread hold at its next boundary, since a notice is on its way to `notify`.

        Called by the signal handler, in the main thread between two instructions: so it takes no lock
        and only sets attributes. Without it, the main thread could begin further steps in the
        millisecond until the call comes back.
        """
        if self._delegate.member.expect(self._clock(), self.entered):
            self.attention = True

    def notify(self, notice: Notice) -> None:
        """Called by the listener threads; never by a signal handler."""
        with self._delegate.changed:
            self.notices.append(notice)
        heard = self._delegate.notify(notice)
        self._tell_notice(notice.source, notice.reason, notice.received_at, notice.deadline)
        if heard is NoticeEffect.OVER:
            logger.info(
                "%s came when training was over already; there is nothing left to save.", notice.reason
            )
        elif heard is NoticeEffect.HINT:
            logger.warning("%s: saving now, in case a notice follows. Training continues.", notice.reason)
        elif heard is NoticeEffect.KNOWN:
            logger.info("%s changes nothing: an earlier notice leaves less time.", notice.reason)
        else:
            standing, now = self._standing, self._clock()
            left = standing.save_deadline - now if standing else 0.0
            logger.warning("%s", self.announcement(notice, f" in {left:.0f} s" if left > 0 else ""))
            if standing.ends_at is not None:
                step, save = self.pace.slowest(self.entered), self.pace.save_seconds
                if (late := too_late(standing.ends_at - now, 0.0, save, step)) > 0:
                    logger.error(
                        "This notice comes too late: the next step is expected to take %.1f s and saving it %.1f s, "
                        "which is %.1f s more than there is. If that comes true, %s is lost.",
                        step,
                        save,
                        late,
                        self.at_risk(),
                    )
            self._on_end_known(standing.ends_at)

    def interrupt(self) -> None:
        """Takes a Ctrl-C of the user. Called by the listener thread; never by a signal handler."""
        heard = self._delegate.interrupt()
        self._tell_notice("interrupt", "Ctrl-C", time.time(), None)
        if heard is NoticeEffect.OVER:
            logger.warning("Ctrl-C came when training was over already; there is nothing left to save.")
        else:
            logger.warning(
                "Ctrl-C: %s, then leaving. Press it again to leave at once, without a save.",
                "all workers save at the same step" if self._together else "saving after this step",
            )

    def _tell_notice(self, source: str, reason: str, received_at: float, deadline: float | None) -> None:
        self._events.emit(
            "notice",
            source=source,
            reason=reason,
            received_at=received_at,
            deadline=deadline,
            boundary=self.entered,
        )

    def before_answers(self, do: Callable[[Call], object]) -> None:
        """Has `do` called in the watcher's thread with each call of a round, before this worker answers it."""
        self._delegate.on_call = do

    def withdraw(self, notice: Notice) -> None:
        """Takes back a notice: its source says that it will not happen. A call that was made already stands."""
        withdrawn = self._delegate.withdraw(notice)
        if withdrawn is Withdrawn.UNKNOWN:
            return
        self._on_end_known(self._standing.ends_at)
        self._events.emit("withdrawn", source=notice.source, reason=notice.reason, boundary=self.entered)
        if withdrawn is Withdrawn.OTHERS_STAND:
            logger.warning("%s was withdrawn; another notice stands.", notice.reason)
        elif withdrawn is Withdrawn.TOO_LATE:
            logger.warning("%s was withdrawn, but the workers have agreed to leave already.", notice.reason)
        else:
            logger.warning("%s was withdrawn: training continues, nothing is lost.", notice.reason)

    @property
    def interrupted(self) -> bool:
        return self._delegate.member.interrupted

    @property
    def has_to_leave(self) -> bool:
        """Whether this worker leaves sooner or later: a notice stands, or its user has interrupted it."""
        return self.interrupted or bool(self._standing)

    def await_notice(self, ask: Callable[[], object], timeout: float, at: Position | None) -> bool:
        """Calls `ask`, and waits at most `timeout` seconds for the notice that it leads to; returns whether it came.

        `at` is the boundary that the main thread has entered and is about to look closer at, if it is what waits: a
        round that is called meanwhile stops it there, and not only at the next boundary.
        """
        delegate = self._delegate
        with delegate.changed:
            if at is not None:
                delegate.member.held = at
            before = len(self.notices)
        ask()
        with delegate.changed:
            came = delegate.changed.wait_for(lambda: len(self.notices) > before, timeout)
            if not came and at is not None:
                delegate.member.held = None
            return came

    @property
    def _standing(self) -> Standing:
        with self._delegate.changed:
            return self._delegate.member.standing

    # -- The time that is left --------------------------------------------------------------------------

    @property
    def fatal(self) -> str | None:
        """Why no agreement is possible any more; None as long as one is."""
        return self._delegate.fatal

    @property
    def trains_on_for(self) -> float | None:
        """Seconds until the countdown of this process calls, as it looks now; None if there is no countdown."""
        due = self._delegate.due()
        return None if due is None else max(0.0, due - self._clock())

    @property
    def left(self) -> float | None:
        """Seconds until this machine goes; None if nobody has said when that is."""
        ends_at = self._standing.ends_at
        return None if ends_at is None else ends_at - self._clock()

    def patience(self) -> float | None:
        """Seconds that a save which begins now waits for what other workers have to write; None for no limit."""
        left = self.left
        return None if left is None else longest_wait(left, self.pace.save_seconds)

    # -- Boundaries, in the main thread -----------------------------------------------------------------

    def enter(self) -> None:
        """Counts a boundary; where that happens at every step, the main thread does so itself."""
        self.entered = self.count[0] = self.entered + 1

    def start(self) -> None:
        """Starts to take part in rounds. Notices that came before are acted on now."""
        self._delegate.start()
        self.started = True

    def update_attention(self) -> None:
        """Recomputes `attention` after another thread has set it."""
        with self._delegate.changed:
            self._delegate.update()

    def boundary(self, position: Position) -> Plan | None:
        """Looks closer at a boundary that was just entered; returns the plan if this is where to act on it.

        Raises ProtocolError if the fit has passed the boundary that was agreed on.
        """
        if self.pace.enter(self.entered) and self._countdown is not None:
            with self._delegate.changed:
                self._delegate.changed.notify_all()  # The reserve has grown.
        plan = self._timed(self._delegate.hold, position)
        if plan is None:
            self.pace.leave(self.entered)
        return plan

    def finish(self, position: Position) -> Plan | None:
        """Enters the last boundary, at which all workers agree that training is over.

        Returns the plan under which to save the finished run; None if no agreement was possible.
        """
        self.enter()
        return self._timed(self._delegate.finish, position)

    def _timed(self, hold: Callable[[Position], Plan | None], position: Position) -> Plan | None:
        began = self._clock()
        plan = hold(position)
        waited = self._clock() - began
        self.hold_seconds += waited
        if plan is None:
            self._held_before += waited
        else:
            before, self._held_before = self._held_before, 0.0
            self._events.emit(
                "hold",
                boundary=self.entered,
                seconds=waited,
                before=before,
                goes_on=plan.goes_on,
                **asdict(position),
            )
        return plan

    def call_periodic(self) -> None:
        """Calls a round for a save after which training continues, unless a round is under way."""
        self._delegate.ask(self._delegate.member.call_periodic)

    def call_requested(self) -> int | None:
        """The same for a requested save; returns the number of the round, None if one is under way."""
        request = self._delegate.ask(self._delegate.member.call_requested)
        return None if request is None else request.round

    def acted(self) -> None:
        """Called when the plan is carried out and training continues, ready for the next round."""
        delegate = self._delegate
        delegate.ask(delegate.member.acted)
        if self._countdown is None and delegate.due() is not None:
            countdown = threading.Thread(target=self._count_down, name="keras_preempt-countdown", daemon=True)
            try:
                countdown.start()
                self._countdown = countdown
            except (RuntimeError, MemoryError) as error:
                logger.warning(
                    "Training ends now, and not later: nothing can count the time left (%s).", error
                )
                self.ends_early = True
                delegate.ask(delegate.member.call_to_leave)
        self.pace.leave(self.entered)

    def _count_down(self) -> None:
        """Calls the last round at its time, which may change until then."""
        delegate = self._delegate
        while True:
            with delegate.changed:
                while delegate.member.open:
                    due = delegate.due()
                    left = None if due is None else due - self._clock()
                    if left is not None and left <= 0:
                        break
                    # Not longer than a lock may wait.
                    delegate.changed.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
                if not delegate.member.open:
                    return
            delegate.ask(delegate.member.count_down)

    def leave(self) -> None:
        """Called when the fit is over for this process. The coordination leader goes last, after at most 5 s."""
        self._delegate.leave(self.left)
        self.close("the fit is over")

    def close(self, why: str) -> None:
        """Ends what was started, whatever state the fit is in. Can be called twice."""
        self._delegate.close(why)
        if self._countdown is not None and self._countdown is not threading.current_thread():
            self._countdown.join(timeout=60)
