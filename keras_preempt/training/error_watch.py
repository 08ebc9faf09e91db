"""Ends a process that waits in a collective for a worker which has failed, where no exception reaches it.

A backend may be able to end the collectives of all workers with the error of one of them; then this is not needed. On
JAX nobody can: the main thread waits inside of XLA until the failed process has gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable

from keras_preempt.agreement.coordinator import CoordinationLost, Coordinator
from keras_preempt.agreement.messages import Failure
from keras_preempt.backend.seam import backend

logger = logging.getLogger("keras_preempt")

PATIENCE = 3.0
"""Seconds that the main thread has to find out by itself, as it does when the failed process is gone."""

NOBODY = "nobody"
"""What stands under the key for the moment in which somebody looks at it."""

_STATUS = 1  # As Python ends with for an error.
_STOP_LIMIT = 5.0  # seconds
_PAUSE = 0.05  # seconds, within which whoever looks at the key deletes it again


class ErrorWatch:
    """Waits for the error of another worker, in a thread.

    Args:
        coordinator: Where it is told.
        key: Under which key.
        heard: Called when the main thread did not find out; logs the error, and tells that it was heard.
        end: Ends the process; for tests.
        patience: See `PATIENCE`.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        key: str,
        heard: Callable[[Failure], object],
        end: Callable[[], None] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._coordinator = coordinator
        self._key = key
        self._heard = heard
        self._end = end or _end_process
        self._patience = patience
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._wait, name="keras_preempt-error-watch", daemon=True)

    def start(self) -> None:
        """Starts to wait."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it: training has ended. Can be called twice."""
        self._over.set()
        limit = time.monotonic() + _STOP_LIMIT
        try:
            while self._thread.is_alive() and time.monotonic() < limit:
                inserted = self._coordinator.put_if_absent(self._key, NOBODY)
                self._thread.join(timeout=0.2)
                if inserted:
                    self._coordinator.delete(self._key)
        except CoordinationLost:
            self._thread.join(timeout=1)  # The service has failed, and with it the wait.

    def _wait(self) -> None:
        while not self._over.is_set():
            try:
                text = self._coordinator.wait_for(self._key, timeout=None)
            except CoordinationLost:
                return
            failure = Failure.decode(text)
            if failure is not None and failure.member == self._coordinator.member:
                return
            if failure is None:  # Somebody looks at the key, or stops.
                self._over.wait(_PAUSE)
            elif not self._over.wait(self._patience):
                self._heard(failure)
                self._end()
                return


def _end_process() -> None:
    backend().errors.before_a_hard_end()
    with contextlib.suppress(Exception):  # The program's handlers may raise anything.
        logging.shutdown()
    os._exit(_STATUS)
