"""Ctrl-C during a fit: the first one saves and leaves, the second one leaves at once.

Without this Python raises KeyboardInterrupt wherever the main thread is, and what was trained since the last save is
lost. A program that handles SIGINT itself, or ignores it (a job in a shell's background), is left alone, and so is one
that takes SIGINT while the fit runs.
"""

from __future__ import annotations

import _thread
import logging
import os
import signal
import sys
import time
from collections.abc import Callable

from keras_preempt.process.exit_codes import EXIT_INTERRUPTED

logger = logging.getLogger("keras_preempt")

SAME_PRESS = 0.5
"""Seconds within which a further SIGINT counts as the same Ctrl-C: a terminal sends it to every process in the
foreground, and a wrapper among them may pass it on as well."""


class Interrupts:
    """What SIGINT means to one fit. When the listener thread hears it decides whether a Ctrl-C is the second one.

    For the first one `expect` is called in the main thread, from the signal handler, so it must not wait for anything,
    and `on_interrupt` in the listener thread. Until there is anything to save (`trains`), Ctrl-C raises
    KeyboardInterrupt, as Python does.
    """

    def __init__(
        self,
        expect: Callable[[], None],
        on_interrupt: Callable[[], None],
        trains: Callable[[], bool] = lambda: True,
    ) -> None:
        self._expect = expect
        self._on_interrupt = on_interrupt
        self._trains = trains
        # A person goes on to use this process afterwards, as in a notebook: the second Ctrl-C then raises
        # KeyboardInterrupt, as Python does, and does not end the process.
        self._interactive = hasattr(sys, "ps1") or bool(sys.flags.interactive)
        self._first_at: float | None = None
        self._at_once = False

    def announced(self) -> None:
        """A SIGINT has come; called by its handler, in the main thread. May raise KeyboardInterrupt."""
        if not self._trains():
            raise KeyboardInterrupt
        if self._at_once:
            raise KeyboardInterrupt("Ctrl-C again: left at once, without a save.")
        self._expect()

    def heard(self) -> None:
        """A SIGINT has come; called in the listener thread. May end the process."""
        now = time.monotonic()
        if not self._trains():
            return
        if self._first_at is None:
            self._first_at = now
            self._on_interrupt()
        elif now - self._first_at >= SAME_PRESS and not self._at_once:
            self._at_once = True
            logger.warning(
                "Ctrl-C again: leaving at once, without a save. The last committed checkpoint is kept."
            )
            if self._interactive:
                _thread.interrupt_main(signal.SIGINT)  # It may have looked before `_at_once` was set.
                return
            # The main thread may be in a step that takes minutes, or wait for a storage that does not answer.
            if (multiprocessing := sys.modules.get("multiprocessing")) is not None:
                for child in multiprocessing.active_children():
                    child.terminate()  # As Python does at its end: those that read the data ignore Ctrl-C.
            os._exit(EXIT_INTERRUPTED)
