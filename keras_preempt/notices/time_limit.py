"""The end of a time limit: what the user, the launcher or the scheduler gives this process, known all along."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from keras_preempt.agreement.grace import lead
from keras_preempt.agreement.messages import Call, Kind
from keras_preempt.checkpoint.retention import seconds_of
from keras_preempt.notices import Notice, OnNotice
from keras_preempt.process import environment, this_process

logger = logging.getLogger("keras_preempt")

TIME_LIMIT = "time limit"  # The source of its notices.

_OF_JOB = "job"  # The id of a notice of the end of the whole job.

_MOST_WAIT, _LEAST_WAIT = 3600.0, 0.05  # Seconds between two looks.

_YEAR_2001, _YEAR_2100 = 1e9, 4102444800.0  # In seconds since 1970.


@dataclass(frozen=True)
class LimitEnd:
    """When a time limit is over.

    Attributes:
        at: In seconds since 1970.
        what: The limit, in words.
        of_job: Whether the whole job ends then, and not only this process.
    """

    at: float
    what: str
    of_job: bool = True

    def __str__(self) -> str:
        return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.at))} ({self.what})"


def find_end(limit: object, variable: str) -> LimitEnd | None:
    """The earliest known end; None if none is known.

    `limit` is the user's of this process, if it is a time; `variable` is that of the platform. Raises ValueError for a
    wrong value of the variable that a user sets; a wrong one of the platform is left out, with a warning.
    """
    began, seconds = this_process.started_at(), seconds_of(limit)
    ends = [] if seconds is None else [LimitEnd(began + seconds, f"time_limit of {limit}", of_job=False)]
    if text := os.environ.get(environment.END_TIME):
        if (at := _moment(text)) is None:
            raise ValueError(
                f"Expected {environment.END_TIME} to be a moment, in seconds since 1970. Received: {text!r}. "
                "Correct it or unset it."
            )
        ends.append(LimitEnd(at, environment.END_TIME))
    if variable and (text := os.environ.get(variable)):
        if (at := _moment(text)) is None or at < began:  # Or a leftover of another job.
            logger.warning(
                "Expected %s to be a moment after the start of this process, %.0f, in seconds since 1970. Received: "
                "%r. So it is not known when this allocation ends. Set %s, or time_limit.",
                variable,
                began,
                text,
                environment.END_TIME,
            )
        else:
            ends.append(LimitEnd(at, variable))
    return min(ends, key=lambda end: end.at, default=None)


def _moment(text: str) -> float | None:
    """None for what is none; a number of other units, such as minutes or milliseconds, is far from now."""
    try:
        at = float(text)
    except ValueError:
        return None
    return at if _YEAR_2001 <= at < _YEAR_2100 else None


def ends_job(notice: Notice) -> bool:
    """Whether a notice leaves no time for another start of the job, either."""
    return notice.source == TIME_LIMIT and notice.id == _OF_JOB


class TimeLimitNotices:
    """Announces an end that is known all along: late, so that it costs nothing before, and early enough for two saves.

    `reserve` returns the seconds that the last save is expected to need by now, see `grace.reserve`. A notice is due
    `grace.lead` before the end, in a thread that looks again when half of the time until then is over: what a save
    needs may grow meanwhile.
    """

    def __init__(
        self,
        end: LimitEnd,
        reserve: Callable[[], float],
        on_notice: OnNotice,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._end = end
        self._ends_at = clock() + end.at - time.time()
        self._reserve = reserve
        self._on_notice = on_notice
        self._clock = clock
        self._told = threading.Lock()  # Held from the notice on.
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keras_preempt-time-limit", daemon=True)

    def start(self) -> None:
        if self.due_in() > 0:
            self._thread.start()
        else:
            self._tell()

    def stop(self) -> None:
        """Ends the thread. Can be called twice, and from the thread itself."""
        self._stopped.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=1.0)

    def called(self, call: Call) -> None:
        """Announces the end now if a worker calls because of its own: so one round serves all whose end is near.

        Otherwise each of them would call for itself, a moment later, and have all of them save once more.
        """
        if call.kind in (Kind.PREEMPTED, Kind.DEADLINE) and self._left() <= 2 * lead(self._reserve()):
            self._tell()

    def due_in(self) -> float:
        """Seconds until the notice, as it looks now."""
        return self._left() - lead(self._reserve())

    def _left(self) -> float:
        return self._ends_at - self._clock()

    def _run(self) -> None:
        while (due := self.due_in()) > 0:
            if self._stopped.wait(max(_LEAST_WAIT, min(due / 2, _MOST_WAIT))):
                return
        self._tell()

    def _tell(self) -> None:
        if self._stopped.is_set() or not self._told.acquire(blocking=False):
            return
        left, now = self._left(), time.time()
        reason, deadline = f"Time limit ({self._end.what})", None
        if left > 0:
            deadline = now + left
        else:  # It is time to leave, but there is no moment to be done by.
            reason += f", over for {-left:.0f} s"
        self._on_notice(
            Notice(
                TIME_LIMIT,
                reason,
                now,
                deadline,
                id=_OF_JOB if self._end.of_job else "process",
                foreseen=True,
            )
        )
