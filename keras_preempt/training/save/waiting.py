"""Whom a save waits for and how long, how often it is tried, and what is logged if it fails."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from keras_preempt.agreement.coordinator import Coordinator
from keras_preempt.checkpoint.division import PiecesLost
from keras_preempt.checkpoint.errors import CallFailed, CheckpointError
from keras_preempt.process.threads import started

logger = logging.getLogger("keras_preempt")

PAUSES = (0.1, 1.0)
"""Seconds before a save is tried again of which a call to the file system has failed."""

ASK_SECONDS = 1.0
"""Seconds between two requests for who is gone, which are made only while a save waits for other workers."""

_END_SECONDS = 2.0

Result = TypeVar("Result")


class Peers:
    """Knows which of the other workers are gone, as far as the coordination service says so."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.gone: frozenset[int] = frozenset()
        """Their numbers, as known by now."""

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Keeps `gone` up to date for as long as it is entered.

        In a thread of its own: the request hangs while the worker that hosts the service is frozen, and the save that
        waits has a deadline.
        """
        if self._coordinator.members == 1:
            yield
            return
        over = threading.Event()
        asking = started(self._ask, "keras_preempt-peers", over)
        try:
            yield
        finally:
            over.set()
            if asking is not None:
                asking.join(timeout=_END_SECONDS)

    def _ask(self, over: threading.Event) -> None:
        while not over.wait(ASK_SECONDS):
            self.gone = self.gone | self._coordinator.gone()


class Wait:
    """How long one save waits for other workers: a notice may limit it, also one that comes meanwhile.

    `patience` returns the seconds from now on, or None for no limit; `awaited` whether training waits for the save.
    """

    def __init__(self, patience: Callable[[], float | None], awaited: Callable[[], bool]) -> None:
        self._patience = patience
        self._awaited = awaited
        self._at_first = patience()
        self._until = math.inf

    def begin(self) -> None:
        """This worker's part is written: a limit that was known before counts from now on."""
        if self._at_first is not None:
            self._until = time.monotonic() + self._at_first

    def left(self) -> float:
        """Returns the seconds left, infinite without a limit; the earliest limit that was ever known counts."""
        now = time.monotonic()
        patience = self._patience() if self._awaited() else None
        if patience is not None:
            self._until = min(self._until, now + patience)
        return max(0.0, self._until - now)

    def over(self) -> bool:
        return self.left() <= 0


def tried_again(call: Callable[[int], Result], patience: Callable[[], float | None]) -> Result:
    """Makes a call; repeats it after the file system has failed it, if there is time, since the error may be temporary.

    The call is given how often it was tried before. `patience` returns for how many seconds it may wait; None for no
    limit.
    """
    for tries, pause in enumerate(PAUSES):
        try:
            return call(tries)
        except CallFailed as error:
            left = patience()
            if left is not None and left <= pause:
                raise
            logger.warning("The save is tried again: %s", error)
        time.sleep(pause)
    return call(len(PAUSES))


def tell_not_saved(step: int | None, error: Exception) -> None:
    """Logs why a save has failed."""
    known = isinstance(error, (CheckpointError, PiecesLost, OSError))
    logger.error(
        "The checkpoint at step %s was NOT saved: %s",
        step,
        error if known else f"{type(error).__name__}: {error}",
        exc_info=None if known or isinstance(error, MemoryError) else error,
    )
