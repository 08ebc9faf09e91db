"""What the workers agree over: write-once keys that they share, and the same for a job of one process.

Keys can be inserted once and never changed, so that the first insert wins for the whole cluster.
That single property carries every decision of the package: who called the round, and what its plan is.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

ABORTED = 10
"""TensorFlow's error code of an operation that was given up."""


class CoordinationTimeout(TimeoutError):
    """A key did not appear in time. Usually the member that should have written it is gone."""


class CoordinationLost(RuntimeError):
    """The service that holds the keys cannot be reached any more, or has failed."""


class Coordinator(Protocol):
    """Write-once keys, shared by the members of one job."""

    member: int  # The index of this process, from 0.
    members: int  # How many processes take part.

    def put_if_absent(self, key: str, value: str) -> bool:
        """Inserts `key`, and returns whether it was absent. All methods raise CoordinationLost without a service."""

    def wait_for(self, key: str, timeout: float | None) -> str:
        """Blocks until `key` is there, and returns its value; raises CoordinationTimeout after `timeout` seconds.

        None waits without a limit: only for a thread that is woken at the end by inserting the key.
        """

    def delete(self, prefix: str) -> None:
        """Removes `prefix` and everything under `prefix/`, if there is anything."""

    def gone(self) -> frozenset[int]:
        """The members that are gone, as the service says.

        This sends a request, which can hang for as long as the member that hosts the service does. Make it only while
        waiting for something.
        """
        return frozenset()

    def report_error(self, message: str, code: int = ABORTED) -> None:
        """Makes the other members' collectives fail with `message` instead of waiting for this one.

        They cannot train any more after that; the keys can still be used. `code`, one of TensorFlow's error codes,
        decides the type of their errors.
        """


class LocalCoordinator(Coordinator):
    """A `Coordinator` for a job of one process: a dictionary, so that one process and a cluster run the same code."""

    member = 0
    members = 1

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def put_if_absent(self, key: str, value: str) -> bool:
        with self._changed:
            if key in self._values:
                return False
            self._values[key] = value
            self._changed.notify_all()
            return True

    def wait_for(self, key: str, timeout: float | None) -> str:
        limit = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while key not in self._values:
                left = None if limit is None else limit - time.monotonic()
                if left is not None and left <= 0:
                    raise CoordinationTimeout(f"The key {key!r} did not appear within {timeout:.1f} s.")
                self._changed.wait(left)
            return self._values[key]

    def delete(self, prefix: str) -> None:
        with self._changed:
            for key in [k for k in self._values if k == prefix or k.startswith(prefix + "/")]:
                del self._values[key]

    def report_error(self, message: str, code: int = ABORTED) -> None:
        """Nobody else is there to be told."""
