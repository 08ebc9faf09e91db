"""How long a call to a remote store may take: its timeouts and retries, cut from the time that is left.

A client that retries on its own terms tries for two minutes. A worker under notice has fifteen seconds. So
every call gets a budget, and each of its waits is a share of what remains of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import requests
from google.cloud.storage.exceptions import InvalidResponse
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


def _no_deadline() -> float | None:
    return None


class Budget:
    """The time that one call has left.

    Args:
        seconds: what it may take if nothing else limits it.
        deadline: returns the monotonic seconds at which everything must be over, None for no such moment; asked
            again and again, since a notice may come while the call is under way.
        now: returns monotonic seconds, the clock of `deadline`.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        seconds: float,
        deadline: Callable[[], float | None] = _no_deadline,
        *,
        now: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deadline = deadline
        self._now = now
        self._clock = clock
        begun = clock()
        self._first_end = begun + LAST_CHANCE
        self._end = begun + seconds

    @classmethod
    def for_transfer(cls, size: int, deadline: Callable[[], float | None] = _no_deadline) -> Budget:
        """Returns the budget of a call that moves `size` bytes."""
        return cls(METADATA_SECONDS + size / SLOWEST_TRANSFER, deadline)

    def share(self, fraction: float) -> Budget:
        """Returns a budget of a fraction of what is left."""
        return Budget(self.left * fraction, self._deadline, now=self._now, clock=self._clock)

    @property
    def left(self) -> float:
        """Seconds, never below 0."""
        time_now = self._clock()
        left = self._end - time_now
        deadline = self._deadline()
        if deadline is not None:
            left = min(left, deadline - self._now())
        return max(left, self._first_end - time_now, 0.0)

    def timeout(self, payload: int = 0) -> tuple[float, float]:
        """Returns the seconds for connecting and for waiting for an answer, as `requests` takes them.

        The first also limits the sending of a request's whole body, because that is the timeout that urllib3
        leaves on the socket while it sends; so it grows with the `payload` in bytes.
        """
        left = max(self.left, LAST_CHANCE)
        if payload:
            return min(max(_CONNECT, 4 * payload / SLOWEST_TRANSFER), left / 2), min(_READ, left / 3)
        return min(_CONNECT, left / 3), min(_READ, left / 3)

    def retry(self, payload: int = 0) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Returns what the client library takes for a retry policy.

        The library wraps each request of an upload in it anew. A policy of its own would start its time
        again with every chunk; this one gives each request what is left for all.
        """

        def give_up_if_over(error: Exception) -> None:
            # Called before each further try: the deadline may have come nearer since the first.
            if not self.left:
                raise error

        def within_budget(request: Callable[..., Any]) -> Callable[..., Any]:
            # The last try begins early enough to end in time, if it waits for one thing only.
            seconds = max(self.left - max(self.timeout(payload)), 0.0)
            policy = DEFAULT_RETRY.with_timeout(seconds).with_delay(
                initial=_FIRST_DELAY, maximum=_LONGEST_DELAY, multiplier=2.0
            )
            wrapped: Callable[..., Any] = policy(_read_to_its_end(request), on_error=give_up_if_over)
            return wrapped

        return within_budget


def _read_to_its_end(request: Callable[..., Any]) -> Callable[..., Any]:
    """Frees the connection of an answer that is an error, which the client leaves open for ever on a download."""

    def attempt(*arguments: Any, **options: Any) -> Any:
        try:
            return request(*arguments, **options)
        except InvalidResponse as error:
            try:
                error.response.content  # noqa: B018 (the attribute reads it)
            except requests.RequestException:
                error.response.close()
            raise

    return attempt
