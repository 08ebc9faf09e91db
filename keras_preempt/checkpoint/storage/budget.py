"""The time that a call to a remote store may take: its timeouts and retries, cut from what is left.

By default clients retry for minutes. A worker under notice has fifteen seconds. So every call gets a budget,
each of its waits is a share of what remains of it, and it is tried again until nothing remains: the service may be back
a second before the machine goes away.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

METADATA_SECONDS = 60.0
"""Seconds that a call without data may take when no deadline is near, with all its retries."""

SLOWEST_TRANSFER = 2e6  # Bytes a second; a transfer that is slower is given up.

LAST_CHANCE = 1.0
"""Seconds that a call gets at least. A deadline is an estimate: a process that outlives it may still try."""

_CONNECT = 10.0  # seconds for a connection, at most
_READ = 30.0  # seconds without a byte of the answer, at most
_FIRST_DELAY = 0.25  # seconds between two tries, doubled up to the longest
_LONGEST_DELAY = 2.0  # seconds
_SHORTEST_TRY = LAST_CHANCE / 3  # seconds; with less left another try could not even connect
_ONE_STREAM = 20e6  # bytes a second; the last try begins early enough to send its body so fast
_chance = random.SystemRandom()  # Python's global generator belongs to the training.

Timeouts = tuple[float, float]
"""Seconds for connecting and for waiting for an answer, as `requests` takes them."""


class Budget:
    """The time that one call has left: at most `seconds`, and until the monotonic `deadline` if there is one.

    The deadline is asked for again and again, since a notice may come while the call is under way.
    """

    def __init__(
        self,
        seconds: float,
        deadline: Callable[[], float | None] = lambda: None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._deadline = deadline
        self._clock = clock
        self._wait = wait
        self._seconds = seconds
        begun = clock()
        self._first_end = begun + LAST_CHANCE
        self._end = begun + seconds

    def ending_before(self, seconds: float) -> Budget:
        """Returns a budget that ends `seconds` before this one does."""

        def deadline() -> float | None:
            whole = self._deadline()
            return None if whole is None else whole - seconds

        left = self._end - self._clock() - seconds
        return Budget(left, deadline, clock=self._clock, wait=self._wait)

    @property
    def left(self) -> float:
        """Seconds, never below 0."""
        time_now = self._clock()
        left = self._end - time_now
        deadline = self._deadline()
        if deadline is not None:
            left = min(left, deadline - time_now)
        return max(left, self._first_end - time_now, 0.0)

    def timeout(self, payload: int = 0) -> Timeouts:
        """Returns the timeouts of a request that is made now; urllib3 leaves the first on the socket while it sends."""
        left = max(self.left, LAST_CHANCE)
        if payload:
            return min(max(_CONNECT, 4 * payload / SLOWEST_TRANSFER), left / 2), min(_READ, left / 3)
        return min(_CONNECT, left / 3), min(_READ, left / 3)

    def pauses(self, payload: int = 0) -> Iterator[bool]:
        """Waits before each further try, for random, growing times, and yields True, while there is time for one."""
        longest, is_cut = _FIRST_DELAY, False
        while not is_cut and (left := self.left) >= _SHORTEST_TRY:
            delay = _chance.uniform(0.0, min(longest, _LONGEST_DELAY))
            room = max(left - _SHORTEST_TRY - payload / _ONE_STREAM, 0.0)
            is_cut = delay > room
            self._wait(min(delay, room))
            yield True
            longest = min(2 * longest, _LONGEST_DELAY)

    def renewed(self) -> Budget:
        """Returns a budget with all the time that this one began with, until the same deadline."""
        return Budget(self._seconds, self._deadline, clock=self._clock, wait=self._wait)
