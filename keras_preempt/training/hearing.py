"""What one worker hears about its end: it passes notices on to the agreement, and says what they mean."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from keras_preempt.agreement.coordinator import Coordinator
from keras_preempt.agreement.delegate import Delegate
from keras_preempt.agreement.grace import Standing, too_late
from keras_preempt.agreement.member import Heard, Withdrawn
from keras_preempt.agreement.messages import Position
from keras_preempt.notices import Notice
from keras_preempt.report.events import EventLog
from keras_preempt.training.pace import Pace

logger = logging.getLogger("keras_preempt")


class Hearing:
    """The notices of one fit, as one worker hears them.

    Args:
        coordinator: How the workers talk to each other.
        events: Where to write what happened.
        fit: The number of this fit in this process; the same on every worker.
        grace: Seconds between a notice and the end of this process, if the user says so; see `grace.Standing`.
        on_end_known: Called with the moment at which this machine goes, by `clock`, or None, whenever that changes.
        clock: Returns monotonic seconds, as `Notice.heard_at` has them. Nobody sets this clock, so everything that is
            waited for or counted down goes by it; the time of day goes into the events only.

    Attributes:
        entered: See `delegate.MainThread`.
        attention: See `delegate.MainThread`.
        every_boundary: See `delegate.MainThread`.
        notices: The notices that this process has got, also those that were withdrawn since.
        pace: How fast this fit moves and saves.
        at_risk: Returns what is lost if no save succeeds from now on, in words.
        announcement: Returns what a notice means, in words, given how much time is left, such as " in 30 s".
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
        reserve = self.pace.reserve
        self._delegate = Delegate(
            self,
            coordinator,
            fit,
            grace,
            lambda: reserve(self.entered),
            self.pace.aligned,
            events.emit,
            clock,
        )

    def expect(self) -> None:
        """Makes the main thread hold at its next boundary, since a notice is on its way to `notify`.

        Called by the signal handler, in the main thread between two instructions: so it takes no lock
        and only sets attributes. Without it, the main thread could begin further steps in the
        millisecond until the call comes back.
        """
        if self._delegate.member.expect(self._clock(), self.entered):
            self.attention = True

    def looked(self) -> None:
        """Whoever has set `attention` from outside is done: boundaries are looked at only if they have to be."""
        with self._delegate.changed:
            self._delegate.update()

    def notify(self, notice: Notice) -> None:
        """Takes a notice. Called by the listener threads; never by a signal handler."""
        with self._delegate.changed:
            self.notices.append(notice)
        heard = self._delegate.notify(notice)
        self._events.emit(
            "notice",
            source=notice.source,
            reason=notice.reason,
            received_at=notice.received_at,
            deadline=notice.deadline,
            boundary=self.entered,
        )
        if heard is Heard.OVER:
            logger.info(
                "%s came when training was over already; there is nothing left to save.", notice.reason
            )
        elif heard is Heard.HINT:
            logger.warning("%s: saving now, in case a notice follows. Training continues.", notice.reason)
        elif heard is Heard.KNOWN:
            logger.info("%s changes nothing: an earlier notice leaves less time.", notice.reason)
        else:
            self._tell(notice)

    def interrupt(self) -> None:
        """Takes a Ctrl-C of the user. Called by the listener thread; never by a signal handler."""
        heard = self._delegate.interrupt()
        self._events.emit(
            "notice",
            source="interrupt",
            reason="Ctrl-C",
            received_at=time.time(),
            deadline=None,
            boundary=self.entered,
        )
        if heard is Heard.OVER:
            logger.warning("Ctrl-C came when training was over already; there is nothing left to save.")
        else:
            logger.warning(
                "Ctrl-C: %s, then leaving. Press it again to leave at once, without a save.",
                "all workers save at the same step" if self._together else "saving after this step",
            )

    @property
    def interrupted(self) -> bool:
        """Whether the user has interrupted this worker."""
        return self._delegate.member.interrupted

    @property
    def has_to_leave(self) -> bool:
        """Whether this worker leaves sooner or later: a notice stands, or its user has interrupted it."""
        return self.interrupted or bool(self._standing)

    def _tell(self, notice: Notice) -> None:
        standing, now = self._standing, self._clock()
        left = standing.gone_by - now if standing else 0.0
        logger.warning("%s", self.announcement(notice, f" in {left:.0f} s" if left > 0 else ""))
        if standing.ends_at is not None:
            self._tell_if_too_late(standing.ends_at - now)
        self._on_end_known(standing.ends_at)

    def _tell_if_too_late(self, left: float) -> None:
        step, save = self.pace.slowest(self.entered), self.pace.save_seconds
        late = too_late(left, 0.0, save, step)
        if late > 0:
            logger.error(
                "This notice comes too late: the next step is expected to take %.1f s and saving it %.1f s, which "
                "is %.1f s more than there is. If that comes true, %s is lost.",
                step,
                save,
                late,
                self.at_risk(),
            )

    def withdraw(self, notice: Notice) -> None:
        """A source says that what it announced will not happen. A call that was made already stands."""
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
