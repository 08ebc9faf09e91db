"""TensorFlow's coordination service: one process (the leader) holds the keys, the others ask it by RPC.

Costs and traps, measured on TensorFlow 2.21: an insert takes about 0.15 ms on one host. A get that times out leaves its
request pending on both sides forever, so nothing here polls: every wait is one blocking get, and a wait without a
limit belongs to a thread that is woken by inserting its key. `get_task_states` and `report_error_to_cluster` hold the
GIL until they are answered: a leader that is frozen would freeze every thread of this process with it. So they are
called only after a call without that trait was answered.

Verified with TensorFlow 2.16.1 to 2.21.0; tests/backend/tensorflow/test_canaries.py has a canary for each private name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from keras_preempt.agreement.coordinator import ABORTED, CoordinationLost, CoordinationTimeout
from keras_preempt.backend.versions import UnsupportedTensorFlow
from keras_preempt.process.threads import call_within

ANSWER_TIMEOUT = 15.0
"""Seconds for a call that only waits for its answer. A frozen process gives none, and by then the heartbeat, which
takes 10 s, has failed as well: training cannot continue."""

_Answer = TypeVar("_Answer")


class ServiceCoordinator:
    """A `Coordinator` on TensorFlow's coordination service, whose keys are written once.

    This process is `member` of `members`, chief first, which are the tasks of `jobs`, in their order: by default, all
    are workers. Raises CoordinationLost if the service does not run in this process.
    """

    def __init__(self, member: int, members: int, jobs: Sequence[tuple[str, int]] = ()) -> None:
        self.member = member
        self.members = members
        self._jobs = tuple(jobs) or (("worker", members),)
        self._context = _context()
        self._silent = False
        try:
            self._context.delete_config_key_value("keras_preempt/probe")
        except tf.errors.NotFoundError:
            pass
        except tf.errors.FailedPreconditionError:
            raise CoordinationLost(
                "Expected TensorFlow's coordination service to run in this process. Received: a cluster of "
                f"{members} workers without it. Create the MultiWorkerMirroredStrategy first thing in the "
                "program, with TF_CONFIG set, and leave tf.config's coordination service settings alone."
            ) from None

    def put_if_absent(self, key: str, value: str) -> bool:
        return self._asked(lambda: _insert(self._context, key, value), f"Could not insert {key!r}")

    def wait_for(self, key: str, timeout: float | None) -> str:
        if timeout is not None and timeout <= 0:
            raise CoordinationTimeout(f"No time was left to wait for {key!r}.")
        milliseconds = 0 if timeout is None else max(1, round(timeout * 1000))
        try:
            # Releases the GIL. Where it times out, the request stays pending forever, so this must be rare.
            return str(self._context.get_config_key_value(key, milliseconds))
        except tf.errors.DeadlineExceededError as error:
            raise CoordinationTimeout(f"The key {key!r} did not appear within {timeout} s.") from error
        except tf.errors.OpError as error:
            raise CoordinationLost(f"Could not read {key!r}: {error}") from error

    def delete(self, prefix: str) -> None:
        def delete() -> None:
            with contextlib.suppress(tf.errors.NotFoundError):
                self._context.delete_config_key_value(prefix)

        self._asked(delete, f"Could not delete {prefix!r}")

    def gone(self) -> frozenset[int]:
        """See `Coordinator.gone`.

        It is known ten seconds after a task dies (the heartbeat's timeout), and at once for worker 0, which hosts the
        service.
        """
        try:
            found = [
                state is not None for state in self._answered(lambda: _states(self._context, self._jobs))
            ]
        except tf.errors.DeadlineExceededError:
            return frozenset()
        except (tf.errors.OpError, CoordinationLost):
            found = [member == 0 for member in range(self.members)]
        return frozenset(member for member, gone in enumerate(found) if gone and member != self.member)

    def report_error(self, message: str, code: int = ABORTED) -> None:
        """Puts every member's agent, and with it its collectives, into an error with the text `message`."""

        def report() -> None:
            _wait_for_an_answer(self._context)
            self._context.report_error_to_cluster(code, message)

        self._asked(report, f"Could not report the error {message!r}")

    def _asked(self, call: Callable[[], _Answer], failure: str) -> _Answer:
        try:
            return self._answered(call)
        except tf.errors.OpError as error:
            raise CoordinationLost(f"{failure}: {error}") from error

    def _answered(self, call: Callable[[], _Answer]) -> _Answer:
        """Makes a call to the service. If no answer comes, no further call is made."""
        if self._silent:
            raise CoordinationLost("The coordination service has not answered before; it is not asked again.")
        try:
            return call_within(ANSWER_TIMEOUT, call, "keras_preempt-call")
        except TimeoutError:
            self._silent = True
            raise CoordinationLost(
                f"Expected worker 0, which hosts the coordination service, to answer within {ANSWER_TIMEOUT:.0f} s. "
                "Received: nothing. It is frozen, or the network is gone."
            ) from None


def are_gone(jobs: Sequence[tuple[str, int]]) -> bool:
    """Whether the tasks of these jobs are gone: all are in an error, or the one that hosts the service has left."""
    try:
        return all(state is not None for state in _states(_context(), jobs))
    except tf.errors.DeadlineExceededError:
        return False
    except tf.errors.OpError:
        return True


def remote_jobs() -> tuple[tuple[str, int], ...]:
    """Returns the jobs that this process was connected to by `tf.config.experimental_connect_to_cluster`.

    None in a process that runs all operations itself, as a worker of MultiWorkerMirroredStrategy does.
    """
    server = _context().get_server_def()
    if server is None:
        return ()
    return tuple((str(job.name), len(job.tasks)) for job in server.cluster.job if job.name != server.job_name)


def _context() -> Any:
    try:
        from tensorflow.python.eager import context
    except ImportError as error:
        raise UnsupportedTensorFlow("the module tensorflow.python.eager.context") from error
    current = context.context()
    for method in (
        "set_config_key_value",
        "get_config_key_value",
        "delete_config_key_value",
        "report_error_to_cluster",
        "get_task_states",
        "get_server_def",
    ):
        if not hasattr(current, method):
            raise UnsupportedTensorFlow(f"the method {method} on its eager context")
    return current


def _insert(context: Any, key: str, value: str) -> bool:
    """Inserts a key; returns False if it is there already: the service never overwrites."""
    try:
        context.set_config_key_value(key, value)
    except tf.errors.AlreadyExistsError:
        return False
    return True


def _states(context: Any, jobs: Sequence[tuple[str, int]]) -> list[Any]:
    """Returns the state of each task of these jobs, in their order; None for one that is in no error."""
    _wait_for_an_answer(context)
    return list(context.get_task_states(list(jobs)))


def _wait_for_an_answer(context: Any) -> None:
    """Blocks, with the GIL released, while the process that hosts the service is frozen or out of reach.

    Raises tf.errors.UnavailableError if that has not answered the heartbeat.
    """
    try:
        _insert(context, "keras_preempt/answers", "")
    except tf.errors.DeadlineExceededError as error:
        raise tf.errors.UnavailableError(None, None, f"No heartbeat: {error.message}") from error
    except tf.errors.OpError:
        return  # An answer: another task is in an error, and the service is there.
