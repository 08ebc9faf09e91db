"""Removes superseded checkpoints while training goes on, in a thread that only the end of training waits for."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.checkpoint.tidying import Tidying
from keras_preempt.process.threads import started

logger = logging.getLogger("keras_preempt")

_LIMIT = 3600.0  # Seconds; every request has its own, much shorter limit.
_PATIENCE = 1.0  # Seconds for the request that is under way when training is left.


class _Stopped(Exception):
    """There is no time to tidy up any more."""


class Tidier:
    """Tidies up the directory of one fit, without delaying training or failing it.

    It stops when `leaving` says that this process is about to leave.
    """

    def __init__(
        self,
        store: Store,
        retention: Retention,
        incarnation: int,
        leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        self._tidying = Tidying(store, retention, incarnation, self._check)
        self._retention = retention
        self._leaving = leaving
        self._stopped = False
        self._lock = threading.Lock()
        self._to_do: deque[Callable[[], object]] = deque()
        self._busy = False
        self._thread: threading.Thread | None = None

    def changed(self, directory: str) -> None:
        """A save is made in this folder."""
        self._tidying.changed(directory)

    def after_start(self, restored: str | None, *, wait: bool = False) -> None:
        """Tidies up after earlier starts: a save at a notice leaves that to the next start.

        `restored` is the checkpoint that this start has restored, "" for none; None if others had to be passed over: no
        checkpoint is removed then before this start has saved one.
        """
        self._begin(self._tidying.sweep)
        if restored is not None:
            self._tidying.restored = restored
            self._begin(self._tidy)
        if wait:
            self._join(_LIMIT)

    def soon(self) -> None:
        """Starts to tidy up; returns at once, unless no thread can be started."""
        self._begin(self._tidy)

    def _begin(self, call: Callable[[], object]) -> None:
        with self._lock:
            if call not in self._to_do:
                self._to_do.append(call)
            if self._busy:
                return
            self._busy = True
        self._thread = started(self._run, "keras_preempt-tidy")
        if self._thread is None:
            self._run()

    def now(self) -> None:
        """Tidies up; returns when that has ended."""
        self.soon()
        self._join(_LIMIT)

    def stop(self) -> None:
        """Ends it, whatever is left to remove."""
        self._stopped = True
        self._join(_PATIENCE)

    def _join(self, seconds: float) -> None:
        thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def _check(self) -> None:
        if self._stopped or self._leaving():
            raise _Stopped

    def _run(self) -> None:
        while True:
            with self._lock:
                self._busy = bool(self._to_do)
                if not self._busy:
                    return
                call = self._to_do.popleft()
            try:
                call()
            except _Stopped:
                pass
            except Exception as error:  # What is saved is saved; the next save tries again.
                if not self._stopped:
                    logger.warning("Superseded checkpoints could not be removed: %s", error)

    def _tidy(self) -> None:
        for name in self._tidying.tidy():
            logger.info("Removed %s: superseded, or never committed (%s).", name, self._retention)
