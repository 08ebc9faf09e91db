"""One fit of one process: notices come in, the workers agree on a boundary, the state is saved, the fit ends.

Four threads. The *main* thread trains and passes boundaries; until a notice arrives a boundary costs it an
addition and a test. The *listener* turns notices into calls (`hearing`). The *watcher* takes part in the rounds
(`agreement.delegate`). The *countdown*, there only after a notice that leaves time to train on, calls the last
round when that time is used up. What each of them may do, and when, is decided in `agreement.member`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import asdict

from keras_preempt.agreement.grace import longest_wait
from keras_preempt.agreement.member import Request
from keras_preempt.agreement.messages import Plan, Position
from keras_preempt.training.hearing import Hearing
from keras_preempt.training.timers import Countdown

logger = logging.getLogger("keras_preempt")

NEVER = sys.maxsize
"""A boundary that no fit reaches."""


class Runtime(Hearing):
    """The main thread's way through the boundaries of one fit; its arguments are those of `Hearing`.

    Attributes:
        due: The boundary from which on the schedule of saves has to be looked at.
        hold_seconds: How long the main thread was held, all in all.
        started: Whether it has begun to take part in rounds.
        ends_early: Whether it leaves before the time that is left is used up, as nothing can count it.
    """

    due = NEVER
    hold_seconds = 0.0
    started = False
    ends_early = False
    _held_before = 0.0  # In this round, at boundaries before the target.
    _countdown: Countdown | None = None

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

    def start(self) -> None:
        """Starts to take part in rounds. Notices that came before are acted on now."""
        self._delegate.start()
        self.started = True

    def boundary(self, position: Position) -> Plan | None:
        """Looks closer at a boundary that the main thread has just entered.

        Returns:
            The plan, if this is where to act on it; None to train on.

        Raises:
            ProtocolError: The fit has passed the boundary that was agreed on.
        """
        if self.pace.enter(self.entered) and self._countdown is not None:
            self._countdown.look_again()  # The reserve has grown.
        plan = self._timed(self._delegate.hold, position)
        if plan is None:
            self.pace.leave(self.entered)
        return plan

    def finish(self, position: Position) -> Plan | None:
        """Enters the last boundary: training is over, and everyone has to know it in the same way.

        Returns:
            The plan under which to save the finished run; None if no agreement was possible.
        """
        self.entered += 1
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
        """Calls a round for a save after which training continues; does nothing if a round stands already."""
        self._delegate.ask(self._delegate.member.call_periodic)

    def call_requested(self) -> int | None:
        """The same for a save that somebody has asked for; returns the number of the round, None if one stands."""
        delegate = self._delegate
        asked: list[int] = []

        def step(now: float, reserve: float) -> Request | None:
            request = delegate.member.call_requested(now, reserve)
            asked.extend([] if request is None else [request.round])
            return request

        delegate.ask(step)
        return asked[0] if asked else None

    def acted(self) -> None:
        """The plan is carried out and training continues, ready for the next round."""
        delegate = self._delegate
        delegate.ask(delegate.member.acted)
        if self._countdown is None and delegate.due() is not None:
            try:
                self._countdown = Countdown(
                    delegate.changed,
                    delegate.due,
                    lambda: delegate.ask(delegate.member.count_down),
                    self._clock,
                )
            except (RuntimeError, MemoryError) as error:
                logger.warning(
                    "Training ends now, and not later: nothing can count the time left (%s).", error
                )
                self.ends_early = True
                delegate.ask(delegate.member.call_to_leave)
        self.pace.leave(self.entered)

    def leave(self) -> None:
        """The fit is over for this process. The coordination leader goes last, after at most 5 s."""
        self._delegate.leave(self.left)
        self.close("the fit is over")

    def close(self, why: str) -> None:
        """Ends what was started, whatever state the fit is in. Can be called twice."""
        self._delegate.close(why)
        if self._countdown is not None:
            self._countdown.stop()
