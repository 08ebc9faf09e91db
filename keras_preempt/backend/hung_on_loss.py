"""Ends a coordinator that hangs because its remote workers are gone.

Usually the backend raises an error in the step that runs on workers when they die. TensorFlow can also wait forever
for a tensor on one of them (seen with 2.21, when all workers were killed). Its thread is then inside TensorFlow, where
no exception and no signal handler of Python reaches it. If it holds the GIL there, no other thread runs either. Then
only faulthandler's timer is left, which needs no lock but always ends with status 1.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import threading
from collections.abc import Callable

from keras_preempt.process.exit_codes import EXIT_WORKER_LOST

logger = logging.getLogger("keras_preempt")

PATIENCE = 60.0
"""Seconds from the loss of the coordination service, which the workers host, to the end of the process."""

LAST_RESORT = 15.0
"""Seconds after that until the process ends with status 1 and a traceback of all threads."""


def end_with_worker_lost() -> None:
    """Ends the process at once with the exit status of a lost worker."""
    with contextlib.suppress(Exception):  # The program's handlers may raise anything.
        logging.shutdown()
    os._exit(EXIT_WORKER_LOST)


class HungOnLoss:
    """A limit, in seconds, to how long training may hang after the workers are gone. It starts with `begin`."""

    def __init__(self, end: Callable[[], None] = end_with_worker_lost, patience: float = PATIENCE) -> None:
        self._end = end
        self._patience = patience
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._wait, name="keras_preempt-hung-on-loss", daemon=True)

    def begin(self) -> None:
        """Starts the limit: the workers are gone. Called once."""
        # There may be no standard error to write to.
        with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):
            faulthandler.dump_traceback_later(self._patience + LAST_RESORT, exit=True)
        with contextlib.suppress(RuntimeError, MemoryError):  # No thread: the last resort ends the process.
            self._thread.start()

    def start(self) -> None:
        """Called when training starts: does nothing."""

    def stop(self) -> None:
        """Ends the limit: training has ended on its own."""
        self._over.set()
        if self._thread.is_alive():
            faulthandler.cancel_dump_traceback_later()
            self._thread.join(timeout=5)

    def _wait(self) -> None:
        if self._over.wait(self._patience):
            return
        logger.error(
            "The remote workers are gone, and TensorFlow has not come back from them for %.0f s. This process ends now "
            "with status %d: start it again with its workers; training continues from the last committed checkpoint.",
            self._patience,
            EXIT_WORKER_LOST,
        )
        self._end()
