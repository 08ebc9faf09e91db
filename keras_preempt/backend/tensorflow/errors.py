"""The errors of TensorFlow: what one says of another worker, and how it is reported to another process.

Verified with TensorFlow 2.16.1 to 2.21.0; tests/backend/tensorflow/test_canaries.py has a canary for each private name.
"""

from __future__ import annotations

import functools
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_preempt.agreement.coordinator import ABORTED
from keras_preempt.backend.place import PREEMPTION_NOTICE_KEY, RemoteWorkers
from keras_preempt.backend.seam import Errors
from keras_preempt.process.exit_codes import EXIT_WORKER_LOST, exits_with

_NOT_REPORTED_AS_ITSELF = (tf.errors.OUT_OF_RANGE, tf.errors.CANCELLED)
"""Codes that loops over data, and TensorFlow itself, do not take for an error."""

_BY_CODE: dict[int, Callable[[None, None, str], Exception]] = {
    int(kind(None, None, "").error_code): kind
    for kind in vars(tf.errors).values()
    if isinstance(kind, type) and issubclass(kind, tf.errors.OpError) and kind is not tf.errors.OpError
}
"""TensorFlow's classes of errors by code."""

_LOST = re.compile(
    r"/tensorflow\.CoordinationService/|different incarnation|heartbeat timeout|stopped sending heartbeats"
)
"""In TensorFlow's own texts: a worker cannot be reached, was restarted alone, or was given up by the others.

Seen in 2.21: "Collective ops is aborted by: Deadline Exceeded / RPC: /tensorflow.CoordinationService/Heartbeat" where
worker 0 does not answer; "unexpectedly tried to connect with a different incarnation. It has likely restarted."; and,
at a worker that comes back after its peers gave it up, "Unexpected heartbeat request from an already-in-error task".
"""


WORKER_PREEMPTION = b"type.googleapis.com/tensorflow.distributed_runtime.WorkerPreemption"
"""The payload of an AbortedError in which TensorFlow says which task was preempted."""


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


class TensorFlowErrors(Errors):
    ends_collectives = True

    def described(self, error: BaseException) -> tuple[int, str]:
        if isinstance(error, tf.errors.OpError):
            return int(error.error_code), str(error.message)
        return 0, str(error)

    def of_code(self, code: int, text: str) -> Exception | None:
        return _BY_CODE[code](None, None, text) if code in _BY_CODE else None

    def code_to_report(self, code: int) -> int:
        return ABORTED if code in (0, *_NOT_REPORTED_AS_ITSELF) else code

    def may_hide_another(self, error: BaseException) -> bool:
        return isinstance(
            error, (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
        )

    def says_a_worker_is_gone(self, error: BaseException) -> bool:
        if isinstance(error, (tf.errors.AbortedError, tf.errors.DeadlineExceededError)):
            return _LOST.search(str(error.message)) is not None
        return isinstance(error, tf.errors.UnavailableError)

    def says_the_service_is_out_of_reach(self, error: BaseException) -> bool:
        return isinstance(error, tf.errors.DeadlineExceededError) and self.says_a_worker_is_gone(error)

    def says_a_loss(self, error: BaseException, remote: RemoteWorkers) -> bool:
        """See `Errors.says_a_loss`.

        A coordinator that asks for a tensor on a worker that is gone may get any error of Python ("ValueError: Socket
        closed", seen with TensorFlow 2.21). So any error that TensorFlow's code has raised counts as a loss if the
        workers are gone.
        """
        if isinstance(error, tf.errors.OpError):
            return self.says_a_worker_is_gone(error)
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        folder = Path(tf.__file__).parent
        return (
            bool(remote and frames)
            and Path(frames[-1].f_code.co_filename).is_relative_to(folder)
            and remote.wait_until_gone(timeout=0)
        )

    def lost(self, error: BaseException) -> WorkerLost:
        if isinstance(error, tf.errors.OpError):
            return WorkerLost(error.node_def, error.op, error.message)
        return WorkerLost(None, None, str(error))

    def check_preemption(self, seen: str | None) -> None:
        """Raises what TensorFlow's op CheckPreemption raises once a worker was preempted.

        The op, which also ends what runs asynchronously on remote workers, is not linked in the public builds.
        """
        if (op := check_op()) is not None:
            op(preemption_key=PREEMPTION_NOTICE_KEY)
        if seen is not None:
            raise tf.errors.AbortedError(
                None, None, f"Task {seen} was preempted.", {WORKER_PREEMPTION: seen.encode()}
            )

    def check_preemption_is_linked(self) -> bool:
        return check_op() is not None

    def task_preempted_by(self, error: BaseException | None) -> str | None:
        if not isinstance(error, tf.errors.AbortedError):
            return None
        task = error.experimental_payloads.get(WORKER_PREEMPTION)
        return None if task is None else bytes(task).decode(errors="replace")

    def forget_asynchronous(self) -> None:
        tf.experimental.async_clear_error()


@functools.cache
def check_op() -> Callable[..., Any] | None:
    """Returns TensorFlow's op CheckPreemption; None if it is not linked."""
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
