"""The one thread of a source that asks: again and again, patient with failures, ended at any time."""

from __future__ import annotations

import abc
import logging
import threading
import time
from collections.abc import Callable

from keras_preempt.notices.backoff import Backoff
from keras_preempt.notices.metadata_client import MetadataError
from keras_preempt.notices.stopping import Stopped, Stopping

logger = logging.getLogger("keras_preempt")

_STOP_SECONDS = 1.0


class SourceThread:
    """Calls a function again and again in a thread, until told to stop.

    When the function fails with MetadataError it is called again after a while. That the server fails is logged
    when it begins, that it is well again when it ends, and nothing in between.

    Args:
        name: What is asked, for the log, such as "GCE preemption".
        ask: Asks once, and returns for how many seconds to wait before the next time, or None if there is nothing
            more to hear. It passes the `Stopping` on to whatever it waits for.
        backoff: How long to wait after failures.
    """

    def __init__(self, name: str, ask: Callable[[Stopping], float | None], backoff: Backoff) -> None:
        self._name = name
        self._ask = ask
        self._backoff = backoff
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
        """Ends the thread, within a second. Can be called twice, and from the thread itself.

        A thread that is inside somebody else's code (a callback, a name look-up) ends when that returns.
        """
        if self._stopping is None or self._thread is None:
            return
        self._stopping.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=_STOP_SECONDS)

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


class AskingSource(abc.ABC):
    """A source of notices that asks a metadata server in a thread, from `start` until `stop`.

    Args:
        name: What is asked, for the log, such as "GCE preemption".
        backoff: How long to wait after failures; None for the usual times.
    """

    def __init__(self, name: str, backoff: Backoff | None) -> None:
        self._thread = SourceThread(name, self._ask, backoff or Backoff())

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, within a second; no notice is delivered after this. Can be called twice."""
        self._thread.stop()

    @abc.abstractmethod
    def _ask(self, stopping: Stopping) -> float | None:
        """Asks once; see `SourceThread`."""
