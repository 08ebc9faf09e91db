"""Which of the other workers are gone, asked beside whatever is waited for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from keras_preempt.agreement.coordinator import Coordinator

ASK_SECONDS = 1.0
"""Seconds between two questions, which are asked only while a save waits for other workers."""

_END_SECONDS = 2.0


class Peers:
    """The other workers, as far as the coordination service knows that they are gone.

    Args:
        coordinator: Whom to ask.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._gone: frozenset[int] = frozenset()

    @property
    def gone(self) -> frozenset[int]:
        """Their numbers; what is known by now, without asking."""
        return self._gone

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Keeps `gone` up to date for as long as it is entered.

        In a thread of its own: the question hangs while the worker that hosts the service is frozen, and whoever
        waits has a deadline.
        """
        if self._coordinator.members == 1:
            yield
            return
        over = threading.Event()
        asking = threading.Thread(target=self._ask, args=(over,), name="keras_preempt-peers", daemon=True)
        asking.start()
        try:
            yield
        finally:
            over.set()
            asking.join(timeout=_END_SECONDS)

    def _ask(self, over: threading.Event) -> None:
        while not over.wait(ASK_SECONDS):
            self._gone = self._gone | self._coordinator.gone()
