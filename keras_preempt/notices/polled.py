"""Notices of the user's own: a function that says whether this machine is about to go."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from keras_preempt.notices.notice import Notice
from keras_preempt.notices.source_thread import AskingSource, Backoff
from keras_preempt.notices.stopping import Stopping

logger = logging.getLogger("keras_preempt")

_WATCHER_STOP_SECONDS = 0.5


class PolledNotices(AskingSource):
    """Calls a function again and again, from `start` until it returns True or `stop` is called.

    A function that raises, blocks or returns something else is reported once and called again: it must not bring down
    the training that it is there to protect.

    This source may have two threads. A call cannot tell from inside that it blocks, so a second thread waits beside
    it, until it has had a reason to warn.

    Args:
        function: Returns whether a notice is there. It must not block.
        on_notice: Called in the source's thread with the notice, once.
        poll_seconds: The time between two calls, in seconds.
        blocking_seconds: How long a call may take before it counts as blocked, in seconds.
        backoff: How long to wait after the function raised; up to 5 s by default once it has worked, 60 s before.
    """

    def __init__(
        self,
        function: Callable[[], object],
        on_notice: Callable[[Notice], None],
        *,
        poll_seconds: float = 1.0,
        blocking_seconds: float = 10.0,
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__("termination_watcher_fn", on_notice, backoff)
        self._function = function
        self._poll_seconds = poll_seconds
        self._blocking_seconds = blocking_seconds
        self._said_raises = False
        self._said_nonsense = False
        self._calling_since: float | None = None
        self._over = threading.Event()
        self._watcher = threading.Thread(
            target=self._watch, name="keras_preempt-termination_watcher_fn-watch", daemon=True
        )

    def start(self) -> None:
        """Starts to call the function."""
        super().start()
        self._watcher.start()

    def stop(self) -> None:
        """Ends the calls, within a second; no notice is delivered after this. Can be called twice.

        A call that blocks is left alone, and what it returns in the end is ignored.
        """
        self._over.set()
        super().stop()
        if self._watcher.is_alive() and threading.current_thread() is not self._watcher:
            self._watcher.join(_WATCHER_STOP_SECONDS)

    def _ask(self, stopping: Stopping) -> float | None:
        self._calling_since = time.monotonic()
        try:
            returned = self._function()
        except (Exception, SystemExit) as error:
            # Whatever it is: the user's code must not end ours.
            if not self._said_raises:
                self._said_raises = True
                logger.warning(
                    "Expected termination_watcher_fn to return whether a notice is there. Received: it raised %s. "
                    "It is called again, at most %.0f s apart; this is not said again.",
                    type(error).__name__,
                    self._backoff.limit,
                    exc_info=True,
                )
            return self._backoff.next()
        finally:
            self._calling_since = None
        self._backoff.reset()
        if stopping.is_set:
            return None
        if self._is_notice(returned):
            self._over.set()
            self._on_notice(
                Notice("termination_watcher_fn", "it returned True", time.time(), id="termination_watcher_fn")
            )
            return None
        return self._poll_seconds

    def _is_notice(self, returned: object) -> bool:
        truth = _as_bool(returned)
        if truth is None and not self._said_nonsense:
            self._said_nonsense = True
            logger.warning(
                "Expected termination_watcher_fn to return True or False. Received: %.60r. It is taken for False; "
                "this is not said again.",
                returned,
            )
        return truth is True

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
