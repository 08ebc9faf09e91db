"""The errors of TensorFlow: what one says of another worker, and how it is told to another process.

Verified with TensorFlow 2.16.1 to 2.21.0; tests/backend/tensorflow/test_canaries.py has a canary for each private name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_preempt.agreement.coordinator import ABORTED
from keras_preempt.backend.place import PREEMPTION_NOTICE_KEY, RemoteWorkers
from keras_preempt.process.exit_codes import EXIT_WORKER_LOST, exits_with

_NOT_TOLD_AS_ITSELF = (tf.errors.OUT_OF_RANGE, tf.errors.CANCELLED)
"""Codes that loops over data, and TensorFlow itself, take for something other than an error."""

_BY_CODE: dict[int, Callable[[None, None, str], Exception]] = {
    int(kind(None, None, "").error_code): kind
    for kind in vars(tf.errors).values()
    if isinstance(kind, type) and issubclass(kind, tf.errors.OpError) and kind is not tf.errors.OpError
}
"""TensorFlow's classes of errors by code."""


ends_collectives = True
"""Whether an error that one worker reports ends the collectives of the others."""


def described(error: BaseException) -> tuple[int, str]:
    """Returns TensorFlow's code of an error, 0 if it is not TensorFlow's, and its text."""
    if isinstance(error, tf.errors.OpError):
        return int(error.error_code), str(error.message)
    return 0, str(error)


def of_code(code: int, text: str) -> Exception | None:
    """Returns TensorFlow's error of that code with that text; None if it has none of the code."""
    return _BY_CODE[code](None, None, text) if code in _BY_CODE else None


def code_to_report(code: int) -> int:
    """Returns the code under which the other workers are told of an error with a code of `described`."""
    return ABORTED if code in (0, *_NOT_TOLD_AS_ITSELF) else code


def may_hide_another(error: BaseException) -> bool:
    """Whether an error may be all that is left of the connection to a worker that has failed."""
    return isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError))


_LOST = re.compile(
    r"/tensorflow\.CoordinationService/|different incarnation|heartbeat timeout|stopped sending heartbeats"
)
"""In TensorFlow's own texts: a worker cannot be reached, was restarted alone, or was given up by the others.

Seen in 2.21: "Collective ops is aborted by: Deadline Exceeded / RPC: /tensorflow.CoordinationService/Heartbeat" where
worker 0 does not answer; "unexpectedly tried to connect with a different incarnation. It has likely restarted."; and,
at a worker that comes back after its peers gave it up, "Unexpected heartbeat request from an already-in-error task".
"""


def says_a_worker_is_gone(error: BaseException) -> bool:
    """Whether an error of TensorFlow's says that another worker is gone, under whichever of its codes."""
    if isinstance(error, (tf.errors.AbortedError, tf.errors.DeadlineExceededError)):
        return _LOST.search(str(error.message)) is not None
    return isinstance(error, tf.errors.UnavailableError)


def says_the_service_is_out_of_reach(error: BaseException) -> bool:
    """Whether an error says that the coordination service does not answer: any further call may then wait for ever."""
    return isinstance(error, tf.errors.DeadlineExceededError) and says_a_worker_is_gone(error)


class WorkerLost(tf.errors.UnavailableError):
    """Another worker is gone without a notice, or cannot be reached any more: this process cannot continue training.

    It is neither a preemption that was announced nor an error of the program. If it leaves the program, the exit
    status is 69 (EX_UNAVAILABLE) and not 1: start all workers again, and training continues from the last committed
    checkpoint. It is a `tf.errors.UnavailableError`, as TensorFlow usually raises in this case, with TensorFlow's
    text. If TensorFlow has raised another error (`DeadlineExceededError` from its heartbeat, `AbortedError` when a
    worker was restarted alone), that one is its cause. On JAX, where this name is another class, it is a RuntimeError.
    """

    def __init__(self, node_def: object, op: object, message: str, *arguments: object) -> None:
        super().__init__(node_def, op, message, *arguments)
        exits_with(self, EXIT_WORKER_LOST)


def says_a_loss(error: BaseException, remote: RemoteWorkers) -> bool:
    """Whether an error says that another worker is gone.

    Args:
        error: What training ended with.
        remote: The workers that this process computes on, if it is a coordinator. Asking for a tensor on a worker that
            is gone ends in whatever Python raises there ("ValueError: Socket closed", seen with TensorFlow 2.21). So
            any error that TensorFlow itself has raised counts as a loss if the workers are gone.
    """
    if isinstance(error, tf.errors.OpError):
        return says_a_worker_is_gone(error)
    return bool(remote) and _is_raised_by_tensorflow(error) and remote.wait_until_gone(timeout=0)


def lost(error: BaseException) -> WorkerLost:
    """Returns an error that says so as a `WorkerLost` with its text."""
    if isinstance(error, tf.errors.OpError):
        return WorkerLost(error.node_def, error.op, error.message)
    return WorkerLost(None, None, str(error))


def before_a_hard_end() -> None:
    """Does nothing: see `end_without_others`."""


def end_without_others() -> None:
    """Does nothing: a worker of TensorFlow ends without the others."""


WORKER_PREEMPTION = b"type.googleapis.com/tensorflow.distributed_runtime.WorkerPreemption"
"""The payload of an AbortedError in which TensorFlow says which task was preempted."""

_check_op: list[Callable[..., Any] | None] = []
"""TensorFlow's op, None where it is not linked; empty until that is known."""


def check_preemption(seen: str | None) -> None:
    """Raises what TensorFlow's op CheckPreemption raises once a worker was preempted.

    The op is called if it is linked, which it is not in the public builds of TensorFlow. It also ends what runs
    asynchronously on remote workers.

    Args:
        seen: The value of `PREEMPTION_NOTICE_KEY`, such as "/job:worker/task:1"; None if there is none yet.

    Raises:
        tf.errors.AbortedError: With the payload `WORKER_PREEMPTION`.
    """
    op = _linked_check_op()
    if op is not None:
        op(preemption_key=PREEMPTION_NOTICE_KEY)
    if seen is not None:
        raise tf.errors.AbortedError(
            None, None, f"Task {seen} was preempted.", {WORKER_PREEMPTION: seen.encode()}
        )


def check_preemption_is_linked() -> bool:
    """Whether this TensorFlow has the op CheckPreemption."""
    return _linked_check_op() is not None


def task_preempted_by(error: BaseException | None) -> str | None:
    """Returns the task that an error says was preempted, such as "/job:worker/task:1"; None for another error."""
    if not isinstance(error, tf.errors.AbortedError):
        return None
    task = error.experimental_payloads.get(WORKER_PREEMPTION)
    return None if task is None else bytes(task).decode(errors="replace")


def _linked_check_op() -> Callable[..., Any] | None:
    if not _check_op:
        _check_op.append(_find_check_op())
    return _check_op[0]


def _find_check_op() -> Callable[..., Any] | None:
    try:
        from tensorflow.core.distributed_runtime.preemption import gen_check_preemption_op
    except ImportError:
        return None
    op: Callable[..., Any] = gen_check_preemption_op.check_preemption
    try:
        op(preemption_key="keras_preempt/probe")
    except (tf.errors.NotFoundError, tf.errors.UnimplementedError):
        return None
    except tf.errors.OpError:
        pass  # The op is there, and the coordination service is not.
    return op


def forget_asynchronous() -> None:
    """Forgets the error of operations that nobody has waited for, which the next operation would raise again."""
    tf.experimental.async_clear_error()


def _is_raised_by_tensorflow(error: BaseException) -> bool:
    trace = error.__traceback__
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    return Path(trace.tb_frame.f_code.co_filename).is_relative_to(Path(tf.__file__).parent)
