"""TensorFlow's coordination service: one process (the leader) holds the keys, the others ask it by RPC.

Costs and traps, measured on TensorFlow 2.21: an insert takes about 0.15 ms on one host. A get that
times out leaves its request pending on both sides for ever, so nothing here polls: every wait is one
blocking get, and a wait without a limit belongs to a thread that is woken by inserting its key.
"""

from __future__ import annotations

from keras_preempt import tensorflow_internals as internals
from keras_preempt.coordination.coordinator import ABORTED, CoordinationLost, CoordinationTimeout


class ServiceCoordinator:
    """A `Coordinator` on TensorFlow's coordination service.

    Args:
        member: The index of this process in the cluster, chief first.
        members: The number of processes in the cluster.

    Raises:
        CoordinationLost: The service is not running in this process.
    """

    def __init__(self, member: int, members: int) -> None:
        self.member = member
        self.members = members
        self._keys = internals.CoordinationKeys()
        if not self._keys.available():
            raise CoordinationLost(
                "Expected TensorFlow's coordination service to run in this process. Received: a cluster of "
                f"{members} workers without it. Create the MultiWorkerMirroredStrategy first thing in the "
                "program, with TF_CONFIG set, and leave tf.config's coordination service settings alone."
            )

    def put_if_absent(self, key: str, value: str) -> bool:
        """See `Coordinator.put_if_absent`."""
        try:
            return self._keys.insert(key, value)
        except internals.SERVICE_ERRORS as error:
            raise CoordinationLost(f"Could not insert {key!r}: {error}") from error

    def wait_for(self, key: str, timeout: float | None) -> str:
        """See `Coordinator.wait_for`."""
        if timeout is not None and timeout <= 0:
            raise CoordinationTimeout(f"No time was left to wait for {key!r}.")
        try:
            return self._keys.get(key, timeout)
        except internals.DEADLINE_ERROR as error:
            raise CoordinationTimeout(f"The key {key!r} did not appear within {timeout} s.") from error
        except internals.SERVICE_ERRORS as error:
            raise CoordinationLost(f"Could not read {key!r}: {error}") from error

    def delete(self, prefix: str) -> None:
        """See `Coordinator.delete`."""
        try:
            self._keys.delete(prefix)
        except internals.SERVICE_ERRORS as error:
            raise CoordinationLost(f"Could not delete {prefix!r}: {error}") from error

    def gone(self) -> frozenset[int]:
        """See `Coordinator.gone`."""
        found = self._keys.tasks_gone()
        return frozenset(member for member, gone in enumerate(found) if gone and member != self.member)

    def report_error(self, message: str, code: int = ABORTED) -> None:
        """See `Coordinator.report_error`."""
        try:
            self._keys.report_error(message, code)
        except internals.SERVICE_ERRORS as error:
            raise CoordinationLost(f"Could not report the error {message!r}: {error}") from error
