"""Ends a process that waits in a collective for a worker which has failed, where no exception reaches it.

A backend may be able to end the collectives of all workers with the error of one of them; then this is not needed. On
JAX nobody can: the main thread waits inside of XLA until the failed process has gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable

from keras_preempt.agreement.coordinator import Coordinator
from keras_preempt.agreement.messages import Failure
from keras_preempt.backend.seam import backend
from keras_preempt.notices.coordination_key import KeyWatch

PATIENCE = 3.0
"""Seconds that the main thread has to find out by itself, as it does when the failed process is gone."""

_STATUS = 1  # As Python ends with for an error.


class ErrorWatch(KeyWatch):
    """Waits for the error of another worker under a key, until training ends.

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
        super().__init__(coordinator, key, "keras_preempt-error-watch")
        self._heard = heard
        self._end = end or _end_process
        self._patience = patience

    def _hear(self, value: str) -> bool:
        failure = Failure.decode(value)
        if failure is None:
            return False
        if failure.member != self._coordinator.member and not self._stopped.wait(self._patience):
            self._heard(failure)
            self._end()
        return True


def _end_process() -> None:
    backend().errors.before_a_hard_end()
    with contextlib.suppress(Exception):  # The program's handlers may raise anything.
        logging.shutdown()
    os._exit(_STATUS)
