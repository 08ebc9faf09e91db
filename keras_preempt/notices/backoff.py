"""How long to wait before a server that does not answer is asked again."""

from __future__ import annotations

import random


class Backoff:
    """Twice as long after each failure, up to a limit, and each time a random half of it.

    Args:
        first: The wait after the first failure, in seconds.
        limit: The longest wait, in seconds.
        known_limit: The longest wait, in seconds, once it has answered. A server that was there comes back, and
            the notice that it then holds may leave half a minute; one that never answered most likely is not there.

    Raises:
        ValueError: One of them is not above 0.
    """

    def __init__(self, first: float = 1.0, limit: float = 60.0, known_limit: float = 5.0) -> None:
        for name, seconds in (("first", first), ("limit", limit), ("known_limit", known_limit)):
            if not seconds > 0:
                raise ValueError(
                    f"Expected {name} above 0 (seconds). Received: {seconds!r}. Correct the number."
                )
        self._first = first
        self._limit = limit
        self._known_limit = known_limit
        self._next = first
        # A generator of its own: the one of the `random` module belongs to training, which must draw from it what
        # it would have drawn without us.
        self._random = random.Random()

    @property
    def limit(self) -> float:
        """The longest wait from here on, in seconds."""
        return self._limit

    def next(self) -> float:
        """After a failure: how long to wait, in seconds."""
        wait = min(self._next, self._limit)
        self._next = wait * 2
        return wait * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """After an answer: the next failure is a first one."""
        self._next = self._first
        self._limit = min(self._limit, self._known_limit)
