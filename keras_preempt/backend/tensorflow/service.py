"""TensorFlow's coordination service: one process (the leader) holds the keys, the others ask it by RPC.

Costs and traps, measured on TensorFlow 2.21: an insert takes about 0.15 ms on one host. A get that
times out leaves its request pending on both sides for ever, so nothing here polls: every wait is one
blocking get, and a wait without a limit belongs to a thread that is woken by inserting its key.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from keras_preempt.agreement.coordinator import ABORTED, CoordinationLost, CoordinationTimeout
from keras_preempt.backend.tensorflow import internals

ANSWER_TIMEOUT = 15.0
"""Seconds that a call may take which waits for nothing but its answer. It takes none at all from a process that is
frozen, and by then the heartbeat has failed as well, after 10 s: training cannot go on."""

_Answer = TypeVar("_Answer")


class ServiceCoordinator:
    """A `Coordinator` on TensorFlow's coordination service.

    Args:
        member: The index of this process in the cluster, chief first.
        members: The number of processes in the cluster.
        jobs: The jobs that these are the tasks of, in their order; all workers if none are named.

    Raises:
        CoordinationLost: The service is not running in this process.
    """

    def __init__(self, member: int, members: int, jobs: Sequence[tuple[str, int]] = ()) -> None:
        self.member = member
        self.members = members
        self._jobs = tuple(jobs) or (("worker", members),)
        self._keys = internals.CoordinationKeys()
        self._silent = False
        if not self._keys.available():
            raise CoordinationLost(
                "Expected TensorFlow's coordination service to run in this process. Received: a cluster of "
                f"{members} workers without it. Create the MultiWorkerMirroredStrategy first thing in the "
                "program, with TF_CONFIG set, and leave tf.config's coordination service settings alone."
            )

    def put_if_absent(self, key: str, value: str) -> bool:
        """See `Coordinator.put_if_absent`."""
        try:
            return self._answered(lambda: self._keys.insert(key, value))
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
            self._answered(lambda: self._keys.delete(prefix))
        except internals.SERVICE_ERRORS as error:
            raise CoordinationLost(f"Could not delete {prefix!r}: {error}") from error

    def gone(self) -> frozenset[int]:
        """See `Coordinator.gone`."""
        try:
            found = self._answered(lambda: self._keys.tasks_gone(self._jobs))
        except CoordinationLost:
            found = [member == 0 for member in range(self.members)]  # Who hosts the service does not answer.
        return frozenset(member for member, gone in enumerate(found) if gone and member != self.member)

    def report_error(self, message: str, code: int = ABORTED) -> None:
        """See `Coordinator.report_error`."""
        try:
            self._answered(lambda: self._keys.report_error(message, code))
        except internals.SERVICE_ERRORS as error:
            raise CoordinationLost(f"Could not report the error {message!r}: {error}") from error

    def _answered(self, call: Callable[[], _Answer]) -> _Answer:
        """Makes a call to the service, in a thread that is left behind if no answer comes: it cannot be called off."""
        if self._silent:
            raise CoordinationLost("The coordination service has not answered before; it is not asked again.")
        answers: queue.SimpleQueue[tuple[_Answer | None, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                answers.put((call(), None))
            except BaseException as error:  # Raised again by the caller.
                answers.put((None, error))

        threading.Thread(target=run, name="keras_preempt-call", daemon=True).start()
        try:
            answer, error = answers.get(timeout=ANSWER_TIMEOUT)
        except queue.Empty:
            self._silent = True
            raise CoordinationLost(
                f"Expected worker 0, which hosts the coordination service, to answer within {ANSWER_TIMEOUT:.0f} s. "
                "Received: nothing. It is frozen, or the network is gone."
            ) from None
        if error is not None:
            raise error
        return answer  # type: ignore[return-value]
