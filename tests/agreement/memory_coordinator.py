"""Write-once keys of several members in one process, with failures that a test can call up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from keras_preempt.agreement.coordinator import ABORTED, CoordinationLost, CoordinationTimeout

PATIENCE = 10.0
"""Seconds after which a test that waits for something to happen gives up."""

Matches = Callable[[int, str], bool]
"""Whether a member's access to a key is meant."""


class MemoryService:
    """What the members share.

    Attributes:
        members: How many members there are.
        calls: Every call of every member: (member, method, key).
    """

    def __init__(self, members: int) -> None:
        self.members = members
        self.calls: list[tuple[int, str, str]] = []
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()
        self._lost = False
        self._muted: Matches = lambda member, key: False
        self._gates: list[tuple[str, Matches]] = []

    def coordinators(self) -> list[MemoryCoordinator]:
        return [MemoryCoordinator(self, member) for member in range(self.members)]

    # -- What a test does ---------------------------------------------------------------------------

    def lose(self) -> None:
        """The service fails: every call, also one that waits, raises `CoordinationLost` from now on."""
        with self._changed:
            self._lost = True
            self._changed.notify_all()

    def mute(self, matches: Matches) -> None:
        """Inserts that match are lost without an error, as those of a member that has died before them."""
        self._muted = matches

    def hold_back(self, method: str, matches: Matches) -> Callable[[], None]:
        """Calls of `method` that match do not return until the function that this returns is called."""
        gate = (method, matches)
        with self._changed:
            self._gates.append(gate)

        def release() -> None:
            with self._changed:
                self._gates.remove(gate)
                self._changed.notify_all()

        return release

    def await_key(self, end: str, count: int = 1) -> list[str]:
        """Waits until `count` keys that end with `end`, or contain it, are there; returns their values."""
        return self._await(lambda: [v for k, v in self._values.items() if end in k], count, end)

    def await_call(self, member: int, method: str, part: str) -> None:
        """Waits until the member has begun such a call."""
        self._await(lambda: [c for c in self.calls if c[:2] == (member, method) and part in c[2]], 1, part)

    def keys(self) -> list[str]:
        with self._changed:
            return list(self._values)

    def _await(
        self, look: Callable[[], list[str]] | Callable[[], list[tuple[int, str, str]]], count: int, what: str
    ) -> list[str]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(look()) >= count, PATIENCE), (
                f"{what}: {look()} of {count}"
            )
            return [str(found) for found in look()]

    # -- What the members do ------------------------------------------------------------------------

    def begin(self, member: int, method: str, key: str) -> None:
        """Notes a call; waits while it is held back. Called with the lock held."""
        self.calls.append((member, method, key))
        self._changed.notify_all()
        if method != "wait":  # A wait is held back when it is about to return.
            self._pass_gates(member, method, key)
        if self._lost:
            raise CoordinationLost("the service was lost")

    def _pass_gates(self, member: int, method: str, key: str) -> None:
        def open_now() -> bool:
            return self._lost or not any(m == method and matches(member, key) for m, matches in self._gates)

        assert self._changed.wait_for(open_now, PATIENCE), f"{method} {key} of member {member} was held back"

    def put_if_absent(self, member: int, key: str, value: str) -> bool:
        with self._changed:
            self.begin(member, "put", key)
            if key in self._values:
                return False
            if not self._muted(member, key):
                self._values[key] = value
                self._changed.notify_all()
            return True

    def wait_for(self, member: int, key: str, timeout: float | None) -> str:
        limit = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self.begin(member, "wait", key)
            while key not in self._values:
                if self._lost:
                    raise CoordinationLost("the service was lost")
                left = None if limit is None else limit - time.monotonic()
                if left is not None and left <= 0:
                    raise CoordinationTimeout(key)
                self._changed.wait(left)
            value = self._values[key]
            self._pass_gates(member, "wait", key)
            return value

    def delete(self, member: int, prefix: str) -> None:
        with self._changed:
            self.begin(member, "delete", prefix)
            for key in [k for k in self._values if k == prefix or k.startswith(prefix + "/")]:
                del self._values[key]


class MemoryCoordinator:
    """One member's `Coordinator`."""

    def __init__(self, service: MemoryService, member: int) -> None:
        self.member = member
        self.members = service.members
        self._service = service

    def put_if_absent(self, key: str, value: str) -> bool:
        return self._service.put_if_absent(self.member, key, value)

    def wait_for(self, key: str, timeout: float | None) -> str:
        return self._service.wait_for(self.member, key, timeout)

    def delete(self, prefix: str) -> None:
        self._service.delete(self.member, prefix)

    def gone(self) -> frozenset[int]:
        return frozenset()

    def report_error(self, message: str, code: int = ABORTED) -> None:
        """Collectives are not part of this."""
