"""`WorkerLost`: what is raised where a worker is gone without a word, and how its exit status tells that."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from keras_preempt.backend.tensorflow import internals
from keras_preempt.backend.tensorflow.remote_workers import RemoteWorkers
from keras_preempt.process.exit_codes import EXIT_WORKER_LOST, exits_with


class WorkerLost(tf.errors.UnavailableError):
    """Another worker is gone without a notice, or cannot be reached any more: training cannot go on in this process.

    It is neither a preemption that was announced nor an error of the program. If it leaves the program, the exit
    status is 69 (EX_UNAVAILABLE) and not 1: start all workers again, and training continues from the last committed
    checkpoint. It is the `tf.errors.UnavailableError` that TensorFlow raises then as a rule, with its text; where
    TensorFlow has raised another one (`DeadlineExceededError` of its heartbeat, `AbortedError` when a worker was
    restarted alone), that is its cause.
    """

    def __init__(self, node_def: object, op: object, message: str, *arguments: object) -> None:
        super().__init__(node_def, op, message, *arguments)
        exits_with(self, EXIT_WORKER_LOST)


def says_a_loss(error: BaseException, remote: RemoteWorkers) -> bool:
    """Whether an error says that another worker is gone.

    Args:
        error: What training ended with.
        remote: The workers that this process computes on, if it is a coordinator. What it asks of a tensor that lies
            on a worker which is gone ends in whatever Python raises there ("ValueError: Socket closed", seen with
            TensorFlow 2.21). So an error that TensorFlow itself has raised is one, if the workers are gone.
    """
    if isinstance(error, tf.errors.OpError):
        return internals.says_a_worker_is_gone(error)
    return bool(remote) and _is_raised_by_tensorflow(error) and remote.wait_until_gone(timeout=0)


def lost(error: BaseException) -> WorkerLost:
    """An error that says so, as a `WorkerLost` with its text."""
    if isinstance(error, tf.errors.OpError):
        return WorkerLost(error.node_def, error.op, error.message)
    return WorkerLost(None, None, str(error))


def _is_raised_by_tensorflow(error: BaseException) -> bool:
    trace = error.__traceback__
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    return Path(trace.tb_frame.f_code.co_filename).is_relative_to(Path(tf.__file__).parent)
