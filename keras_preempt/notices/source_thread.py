"""The thread of a source that asks again and again: patient with failures, and ended at any time."""

from __future__ import annotations

import abc
import logging
import random
import threading
import time
from collections.abc import Callable

from keras_preempt.notices.metadata_client import MetadataError
from keras_preempt.notices.notice import Notice
from keras_preempt.notices.stopping import Stopped, Stopping

logger = logging.getLogger("keras_preempt")

_STOP_SECONDS = 1.0


class Backoff:
    """How long to wait after a failure: twice as long each time, up to a limit, less a random part of up to half.

    Args:
        first: The wait after the first failure, in seconds.
        limit: The longest wait, in seconds.
        known_limit: The longest wait, in seconds, once it has answered. A server that was there comes back, and
            the notice that it then holds may leave half a minute; one that never answered is probably not there.

    Raises:
        ValueError: One of them is not above 0.
    """

    def __init__(self, first: float = 1.0, limit: float = 60.0, known_limit: float = 5.0) -> None:
        for name, seconds in (("first", first), ("limit", limit), ("known_limit", known_limit)):
            if not seconds > 0:
                raise ValueError(
                    f"Expected {name} above 0 (seconds). Received: {seconds!r}. Correct the number."
                )
        self._first = first
        self._limit = limit
        self._known_limit = known_limit
        self._next = first
        # A generator of its own: the one of the `random` module belongs to training, which must draw from it what
        # it would have drawn without us.
        self._random = random.Random()

    @property
    def limit(self) -> float:
        """The longest wait from here on, in seconds."""
        return self._limit

    def next(self) -> float:
        """After a failure: how long to wait, in seconds."""
        wait = min(self._next, self._limit)
        self._next = wait * 2
        return wait * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """After an answer: the next failure counts as the first."""
        self._next = self._first
        self._limit = min(self._limit, self._known_limit)


class AskingSource(abc.ABC):
    """A source of notices that asks again and again in a thread of its own, from `start` until `stop`.

    When asking fails with MetadataError it asks again after a while. The log says when the server begins to fail and
    when it answers again, and nothing in between.

    Args:
        name: What is asked, for the log, such as "GCE preemption".
        on_notice: Called in the source's thread with each notice.
        backoff: How long to wait after failures; None for the default times.
    """

    def __init__(self, name: str, on_notice: Callable[[Notice], None], backoff: Backoff | None) -> None:
        self._name = name
        self._on_notice = on_notice
        self._backoff = backoff or Backoff()
        self._stopping: Stopping | None = None
        self._thread: threading.Thread | None = None
        self._failing_since: float | None = None

    def start(self) -> None:
        """Starts the thread."""
        self._stopping = Stopping()
        self._thread = threading.Thread(
            target=self._run, args=(self._stopping,), name=f"keras_preempt-{self._name}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, within a second; no notice is delivered after this.

        Can be called twice, and from the thread itself. A thread that is inside somebody else's code (a callback, a
        name look-up) ends when that returns.
        """
        if self._stopping is None or self._thread is None:
            return
        self._stopping.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=_STOP_SECONDS)

    @abc.abstractmethod
    def _ask(self, stopping: Stopping) -> float | None:
        """Asks once.

        Args:
            stopping: To be passed on to whatever waits.

        Returns:
            How many seconds to wait before the next time, or None if there is nothing more to hear.

        Raises:
            MetadataError: The server does not answer as it should.
            Stopped: `stopping` was set.
        """

    def _run(self, stopping: Stopping) -> None:
        try:
            while True:
                pause = self._ask_patiently(stopping)
                if pause is None:
                    return
                stopping.wait(pause)
        except Stopped:
            return
        finally:
            stopping.close()

    def _ask_patiently(self, stopping: Stopping) -> float | None:
        try:
            pause = self._ask(stopping)
        except MetadataError as error:
            wait = self._backoff.next()
            if self._failing_since is None:
                self._failing_since = time.monotonic()
                logger.warning(
                    "%s: the metadata server does not answer as it should: %s Training goes on. It is asked again, "
                    "at most %.0f s apart; until it answers, its notices are not heard.",
                    self._name,
                    error,
                    self._backoff.limit,
                )
            return wait
        self._backoff.reset()
        if self._failing_since is not None:
            logger.info(
                "%s: the metadata server answers again, after %.0f s.",
                self._name,
                time.monotonic() - self._failing_since,
            )
            self._failing_since = None
        return pause
