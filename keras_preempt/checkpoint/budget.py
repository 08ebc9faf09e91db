"""How long a call to a remote store may take: its timeouts and retries, cut from the time that is left.

A client that retries on its own terms tries for two minutes. A worker under notice has fifteen seconds. So
every call gets a budget, and each of its waits is a share of what remains of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from google.cloud.storage.retry import DEFAULT_RETRY

METADATA_SECONDS = 60.0
"""Seconds that a call without data may take when no deadline is near, with all its retries."""

SLOWEST_TRANSFER = 2e6
"""Bytes a second; a transfer may take a second more for as many bytes before it is given up."""

LAST_CHANCE = 1.0
"""Seconds that a call gets at least. A deadline is an estimate, and who is still alive after it may try."""

_CONNECT = 10.0  # seconds for a connection, at most
_READ = 30.0  # seconds without a byte of the answer, at most
_FIRST_DELAY = 0.25  # seconds between two tries, doubled up to the longest
_LONGEST_DELAY = 2.0  # seconds


class Budget:
    """The time that one call has left.

    Args:
        seconds: what it may take if nothing else limits it.
        deadline: seconds since 1970 at which everything must be over; None for no such moment.
        now: returns seconds since 1970.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        seconds: float,
        deadline: float | None = None,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if deadline is not None:
            seconds = min(seconds, deadline - now())
        self.seconds = max(seconds, LAST_CHANCE)
        self._clock = clock
        self._end = clock() + self.seconds

    @classmethod
    def for_transfer(cls, size: int, deadline: float | None = None) -> Budget:
        """Returns the budget of a call that moves `size` bytes."""
        return cls(METADATA_SECONDS + size / SLOWEST_TRANSFER, deadline)

    @property
    def left(self) -> float:
        """Seconds, never below 0."""
        return max(self._end - self._clock(), 0.0)

    def timeout(self, payload: int = 0) -> tuple[float, float]:
        """Returns the seconds for connecting and for waiting for an answer, as `requests` takes them.

        The first also limits the sending of a request's whole body, because that is the timeout that urllib3
        leaves on the socket while it sends; so it grows with the `payload` in bytes.
        """
        left = max(self.left, LAST_CHANCE)
        return min(max(_CONNECT, 4 * payload / SLOWEST_TRANSFER), left / 2), min(_READ, left / 3)

    def retry(self, payload: int = 0) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Returns what the client library takes for a retry policy.

        The library wraps each request of an upload in it anew. A policy of its own would start its time
        again with every chunk; this one gives each request what is left for all.
        """

        def within_budget(request: Callable[..., Any]) -> Callable[..., Any]:
            # The last try begins early enough to end in time.
            seconds = max(self.left - sum(self.timeout(payload)), 0.0)
            policy = DEFAULT_RETRY.with_timeout(seconds).with_delay(
                initial=_FIRST_DELAY, maximum=_LONGEST_DELAY, multiplier=2.0
            )
            wrapped: Callable[..., Any] = policy(request)
            return wrapped

        return within_budget
