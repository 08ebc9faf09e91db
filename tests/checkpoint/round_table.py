"""Workers in threads of one process that give each other bytes, as those of a job do over a network."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from keras_preempt.checkpoint.checked_file import Bytes
from keras_preempt.checkpoint.exchange import ROUNDING

PATIENCE = 30.0
"""Seconds after which a worker that waits for another one gives up."""

Damage = Callable[[int, list[Bytes]], None]
"""Called with the number of the round, and what one worker gets, which it may change."""


class RoundTable:
    """A network without a network.

    Attributes:
        lengths: The bytes that each worker has given in each of its rounds.
    """

    def __init__(self, members: int) -> None:
        self._barrier = threading.Barrier(members, timeout=PATIENCE)
        self._given: list[Bytes] = [np.empty(0, np.uint8)] * members
        self.lengths: list[list[int]] = [[] for _ in range(members)]

    def gather(self, member: int, damage: Damage = lambda number, given: None) -> Any:
        """Returns a `Gather` for one worker."""

        def call(data: Bytes) -> Sequence[Bytes]:
            assert data.dtype == np.uint8
            assert len(data) % ROUNDING == 0
            self._given[member] = data.copy()
            self._barrier.wait()
            given = [each.copy() for each in self._given]
            self._barrier.wait()
            damage(len(self.lengths[member]), given)
            self.lengths[member].append(len(data))
            return given

        return call


def together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Makes all calls at once, each in its thread; returns what came of each, an exception for one that it raised."""
    start = threading.Barrier(len(calls), timeout=PATIENCE)

    def run(call: Callable[[], Any]) -> Any:
        try:
            start.wait()
            return call()
        except BaseException as error:  # Also a KeyboardInterrupt.
            return error

    pool = ThreadPoolExecutor(len(calls))
    try:
        return list(pool.map(run, calls, timeout=2 * PATIENCE))  # Else a worker still waits.
    finally:
        pool.shutdown(wait=False)
