"""Rate limits: token buckets for each direction of a connection, and of all connections of a machine together."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

BURST_SECONDS = 0.1
"""How much unused time a bucket keeps: after a pause, this many seconds' worth of bytes move at once."""

_LONGEST_SLICE = 1 << 20  # bytes
_SLICE_SECONDS = 0.02
_SMALLEST_BUFFER = 64 << 10  # bytes
_LARGEST_BUFFER = 1 << 30  # bytes; the system would refuse twice as many, and has fewer by itself


Rate = float | Sequence[float] | None
"""The most that moves in either direction, in bytes a second; or a pair: up, down; None for no limit."""


class Rates(NamedTuple):
    """Bytes a second towards the server and from it; infinite for no limit."""

    up: float
    down: float

    @classmethod
    def of(cls, name: str, value: Rate) -> Rates:
        """Reads an argument called `name`: one rate for both directions, or one for each; None for no limit."""
        given = value if isinstance(value, Sequence) else [value]
        rates = [math.inf if rate is None else rate for rate in given]
        if not 1 <= len(rates) <= 2 or not all(rate > 0 for rate in rates):
            raise ValueError(
                f"Expected {name} above 0, a pair of such numbers, or None. Received: {value!r}. Correct the number."
            )
        return cls(rates[0], rates[-1])

    @property
    def buffer(self) -> int | None:
        """Bytes that the system may buffer for a connection; None for as many as it likes.

        Without a bound it takes megabytes off a client at once, which then does not see a slow network but a long
        silence at the end.
        """
        bound = max(_SMALLEST_BUFFER, min(self) * BURST_SECONDS)
        return None if bound > _LARGEST_BUFFER else int(bound)

    def buckets(self) -> tuple[TokenBucket, TokenBucket]:
        return TokenBucket(self.up), TokenBucket(self.down)


class TokenBucket:
    """Holds what moves to a rate in bytes a second; threads may share it."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._lock = threading.Lock()
        self._due = time.monotonic()

    def take(self, count: int) -> float:
        """Takes `count` bytes; returns how many seconds to wait until they are within the rate."""
        with self._lock:
            now = time.monotonic()
            self._due = max(self._due, now - BURST_SECONDS) + count / self.rate
            return self._due - now


class Throttle:
    """Keeps what moves in one direction within several rates at once; `stopping` ends every wait."""

    def __init__(self, buckets: Sequence[TokenBucket], stopping: threading.Event) -> None:
        self._buckets = buckets
        self._stopping = stopping
        rate = min(bucket.rate for bucket in buckets)
        # Bytes between two calls of `spend`.
        self.slice = max(1, int(min(_LONGEST_SLICE, rate * _SLICE_SECONDS)))

    def spend(self, count: int) -> None:
        """Waits until `count` more bytes are within all rates."""
        seconds = max(bucket.take(count) for bucket in self._buckets)
        if seconds > 0:
            self._stopping.wait(seconds)
