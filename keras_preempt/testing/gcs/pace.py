"""How fast bytes move: token buckets for each direction of a connection, and of a machine's connections together."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

BURST_SECONDS = 0.1
"""How much unused time a bucket keeps: after a pause, as many seconds' worth of bytes move at once."""

_LONGEST_SLICE = 1 << 20  # bytes
_SLICE_SECONDS = 0.02
_SMALLEST_BUFFER = 64 << 10  # bytes
_LARGEST_BUFFER = 1 << 30  # bytes; setsockopt refuses 2 GiB


class Rates(NamedTuple):
    """Bytes a second towards the server and from it; None for no limit."""

    up: float | None = None
    down: float | None = None

    @classmethod
    def of(cls, name: str, value: float | tuple[float, ...] | None) -> Rates:
        """Reads an argument called `name`: one rate for both directions, or one for each.

        Raises:
            ValueError: A rate is not above 0, or there are more than two.
        """
        pair = value if isinstance(value, tuple) else (value, value)
        if len(pair) != 2 or any(rate is not None and not rate > 0 for rate in pair):
            raise ValueError(
                f"Expected {name} above 0, a pair of such numbers, or None. Received: {value!r}. Correct the number."
            )
        return cls(*pair)

    @property
    def buffer(self) -> int | None:
        """Bytes that the system may buffer for a connection; None for as many as it likes.

        Without a bound it takes megabytes off a client at once, which then does not see a slow network but a long
        silence at the end.
        """
        rate = min((rate for rate in self if rate is not None), default=None)
        return (
            None if rate is None else int(min(max(_SMALLEST_BUFFER, rate * BURST_SECONDS), _LARGEST_BUFFER))
        )


class Bucket:
    """A token bucket that threads may share.

    Args:
        rate: Bytes a second.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._lock = threading.Lock()
        self._due = time.monotonic()

    def take(self, count: int) -> float:
        """Takes `count` bytes; returns how many seconds to wait until they are within the rate."""
        with self._lock:
            time_now = time.monotonic()
            self._due = max(self._due, time_now - BURST_SECONDS) + count / self.rate
            return self._due - time_now


class Pace:
    """Keeps what moves in one direction within several rates at once.

    Args:
        buckets: The rates; None among them for no limit.
        stopping: Ends every wait when it is set.
    """

    def __init__(self, buckets: Sequence[Bucket | None], stopping: threading.Event) -> None:
        self._buckets = [bucket for bucket in buckets if bucket is not None]
        self._stopping = stopping

    @property
    def slice(self) -> int:
        """How many bytes to move between two calls of `spend`."""
        rate = min((bucket.rate for bucket in self._buckets), default=float("inf"))
        return max(1, int(min(_LONGEST_SLICE, rate * _SLICE_SECONDS)))

    def spend(self, count: int) -> None:
        """Waits until `count` more bytes are within all rates."""
        seconds = max((bucket.take(count) for bucket in self._buckets), default=0.0)
        if seconds > 0:
            self._stopping.wait(seconds)


class Machines:
    """The buckets of machines: clients with the same User-Agent are on one.

    Args:
        rates: What all connections of one machine move together.
    """

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._lock = threading.Lock()
        self._buckets: dict[str, tuple[Bucket | None, Bucket | None]] = {}

    def of(self, user_agent: str) -> tuple[Bucket | None, Bucket | None]:
        """Returns a machine's buckets for both directions."""
        if self._rates == (None, None):
            return None, None
        with self._lock:
            if user_agent not in self._buckets:
                self._buckets[user_agent] = buckets(self._rates)
            return self._buckets[user_agent]


def buckets(rates: Rates) -> tuple[Bucket | None, Bucket | None]:
    """Returns new buckets for both directions."""
    up, down = (None if rate is None else Bucket(rate) for rate in rates)
    return up, down
