"""Asks which of the other workers are gone, while a save waits for them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from keras_preempt.agreement.coordinator import Coordinator
from keras_preempt.process.threads import started

ASK_SECONDS = 1.0
"""Seconds between two requests, which are made only while a save waits for other workers."""

_END_SECONDS = 2.0


class Peers:
    """Knows which of the other workers are gone, as far as the coordination service says so.

    Args:
        coordinator: Whom to ask.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._gone: frozenset[int] = frozenset()

    @property
    def gone(self) -> frozenset[int]:
        """Their numbers, as known by now; makes no request."""
        return self._gone

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
            self._gone = self._gone | self._coordinator.gone()
