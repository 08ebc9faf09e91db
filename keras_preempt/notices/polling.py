"""Sources of notices that ask again and again in a thread: patient with failures, and stopped at any time."""

from __future__ import annotations

import abc
import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from keras_preempt.notices import Notice, OnNotice
from keras_preempt.notices.metadata_client import MetadataError, Stopped, Stopping

logger = logging.getLogger("keras_preempt")

_STOP_SECONDS = 1.0


class Backoff:
    """How long to wait after a failure, in seconds: twice as long each time, less a random part of up to half.

    After the first answer the limit is `known_limit`: a server that was there comes back, perhaps with a notice that
    leaves half a minute; one that never answered is probably not there.
    """

    def __init__(self, first: float = 1.0, limit: float = 60.0, known_limit: float = 5.0) -> None:
        self.limit = limit
        self._first = first
        self._known_limit = known_limit
        self._next = first
        # A generator of its own: training must draw the same numbers from that of `random` as without this.
        self._random = random.Random()

    def next(self) -> float:
        """After a failure: how long to wait."""
        wait = min(self._next, self.limit)
        self._next = wait * 2
        return wait * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """After an answer: the next failure counts as the first."""
        self._next = self._first
        self.limit = min(self.limit, self._known_limit)


class PollingSource(abc.ABC):
    """A source of notices that asks again and again in a thread of its own, from `start` until `stop`.

    After a MetadataError it asks again after a while. The log says when the server begins to fail and when it answers
    again, and nothing in between; there `name` says what is asked, such as "GCE preemption".
    """

    def __init__(self, name: str, on_notice: OnNotice, backoff: Backoff | None) -> None:
        self._name = name
        self._on_notice = on_notice
        self._backoff = backoff or Backoff()
        self._stopping = Stopping()
        self._thread = threading.Thread(target=self._run, name=f"keras_preempt-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, within a second; no notice is delivered after this.

        Can be called twice, and from the thread itself. A thread that is inside somebody else's code (a callback, a
        name look-up) ends when that returns.
        """
        self._stopping.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=_STOP_SECONDS)

    @abc.abstractmethod
    def _ask(self) -> float | None:
        """Asks once; returns the seconds until the next time, None for no next time. May raise MetadataError."""

    def _run(self) -> None:
        failing_since: float | None = None
        try:
            while True:
                try:
                    pause = self._ask()
                except MetadataError as error:
                    pause = self._backoff.next()
                    if failing_since is None:
                        failing_since = time.monotonic()
                        logger.warning(
                            "%s: the metadata server does not answer as it should: %s Training goes on. It is asked "
                            "again, at most %.0f s apart; until it answers, its notices are not heard.",
                            self._name,
                            error,
                            self._backoff.limit,
                        )
                else:
                    self._backoff.reset()
                    if failing_since is not None:
                        seconds = time.monotonic() - failing_since
                        failing_since = None
                        logger.info(
                            "%s: the metadata server answers again, after %.0f s.", self._name, seconds
                        )
                if pause is None:
                    return
                self._stopping.wait(pause)
        except Stopped:
            return


EARLY = "signal before fit"  # The source of notices that came before fit.

_EARLY_SECONDS = 0.25
_EARLY_LOOKS = 12
"""3 s in all. JAX's handler sets a flag, which a thread of JAX looks at once a second before it tells the others."""


class EarlyNotices(PollingSource):
    """Hears of signals that came before Python listened; `look` waits so many seconds, and returns when one came."""

    def __init__(self, look: Callable[[float], str | None], on_notice: OnNotice) -> None:
        super().__init__(EARLY, on_notice, None)
        self._look = look
        self._left = _EARLY_LOOKS

    def _ask(self) -> float | None:
        self._left -= 1
        if (since := self._look(_EARLY_SECONDS)) is None:
            return 0.0 if self._left else None
        self._stopping.wait()  # After the end of the fit, nobody is told.
        self._on_notice(notice_before_fit(since))
        return None


def notice_before_fit(since: str) -> Notice:
    """The notice of a signal that came before fit, at a time in words."""
    return Notice(EARLY, f"a termination signal at {since}, before fit", time.time())


_FUNCTION = "termination_watcher_fn"


class PolledNotices(PollingSource):
    """Calls a function of the user's again and again, until it returns True: that is a notice.

    A function that raises, blocks or returns something else is reported once and called again: it must not bring down
    the training that it is there to protect. A second thread watches how long a call takes, until it has had a reason
    to warn. A call that blocks is left alone when the source stops, and what it returns in the end is ignored.
    """

    def __init__(
        self,
        function: Callable[[], object],
        on_notice: OnNotice,
        *,
        poll_seconds: float = 1.0,
        blocking_seconds: float = 10.0,
    ) -> None:
        super().__init__(_FUNCTION, on_notice, None)
        self._function = function
        self._poll_seconds = poll_seconds
        self._blocking_seconds = blocking_seconds
        self._said: set[str] = set()
        self._calling_since: float | None = None
        self._over = threading.Event()
        self._watcher = threading.Thread(
            target=self._watch, name=f"keras_preempt-{_FUNCTION}-watch", daemon=True
        )

    def start(self) -> None:
        super().start()
        self._watcher.start()

    def stop(self) -> None:
        self._over.set()
        super().stop()
        if self._watcher.is_alive() and threading.current_thread() is not self._watcher:
            self._watcher.join(_STOP_SECONDS / 2)

    def _ask(self) -> float | None:
        self._calling_since = time.monotonic()
        try:
            returned = self._function()
        except (Exception, SystemExit) as error:  # Whatever it is: the user's code must not end ours.
            self._warn_once(
                "raises",
                "Expected termination_watcher_fn to return whether a notice is there. Received: it raised %s. "
                "It is called again every %g s; this is not said again.",
                type(error).__name__,
                self._poll_seconds,
                exc_info=True,
            )
            return self._poll_seconds
        finally:
            self._calling_since = None
        self._stopping.wait()
        truth = _as_bool(returned)
        if truth:
            self._over.set()
            self._on_notice(Notice(_FUNCTION, "it returned True", time.time(), id=_FUNCTION))
            return None
        if truth is None:
            self._warn_once(
                "nonsense",
                "Expected termination_watcher_fn to return True or False. Received: %.60r. It is taken for False; "
                "this is not said again.",
                returned,
            )
        return self._poll_seconds

    def _warn_once(self, what: str, message: str, *arguments: object, exc_info: bool = False) -> None:
        if what not in self._said:
            self._said.add(what)
            logger.warning(message, *arguments, exc_info=exc_info)

    def _watch(self) -> None:
        while not self._over.wait(self._blocking_seconds / 4):
            since = self._calling_since
            if since is not None and time.monotonic() - since >= self._blocking_seconds:
                logger.warning(
                    "Expected termination_watcher_fn to return at once. Received: no answer for %.0f s. While it "
                    "blocks, its notice is not heard. Let it look and return; this is not said again.",
                    self._blocking_seconds,
                )
                return


def _as_bool(value: Any) -> bool | None:
    """A bool, also one of NumPy or TensorFlow, or 0 or 1; None if the value is none of these."""
    if isinstance(value, int):
        return bool(value) if value in (0, 1) else None
    dtype = getattr(value, "dtype", None)
    if getattr(value, "shape", None) == () and str(getattr(dtype, "name", dtype)) == "bool":
        return bool(value)
    return None
