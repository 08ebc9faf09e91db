"""How long a save waits for what other workers have to write, and how often it is tried."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TypeVar

from keras_preempt.checkpoint.errors import CallFailed

logger = logging.getLogger("keras_preempt")

PAUSES = (0.1, 1.0)
"""Seconds before a save is tried again of which a call to the file system has failed."""

Result = TypeVar("Result")


class Wait:
    """How long one save waits for other workers: a notice may limit it, also one that comes meanwhile.

    Args:
        patience: Returns the seconds from now on; None for no limit.
        awaited: Whether training waits for the save.
    """

    def __init__(self, patience: Callable[[], float | None], awaited: Callable[[], bool]) -> None:
        self._patience = patience
        self._awaited = awaited
        self._at_first = patience()
        self._until = math.inf

    def begin(self) -> None:
        """This worker's part is written; what it knew of its deadline before that counts from now on."""
        if self._at_first is not None:
            self._until = time.monotonic() + self._at_first

    def left(self) -> float:
        """Seconds; infinite without a limit. The earliest limit that was ever known counts."""
        now = time.monotonic()
        patience = self._patience() if self._awaited() else None
        if patience is not None:
            self._until = min(self._until, now + patience)
        return max(0.0, self._until - now)

    def over(self) -> bool:
        """Whether there is no time left to wait."""
        return self.left() <= 0


def tried_again(call: Callable[[int], Result], patience: Callable[[], float | None]) -> Result:
    """Makes a call, and again, if the file system has failed it and there is time: one error may be all there is.

    Args:
        call: What to do; given how often it was tried before.
        patience: Returns for how many seconds it may wait; None for no limit.

    Raises:
        Exception: What the last call has raised.
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
