"""`WorkerLost`: what is raised where a worker is gone without a word, and how its exit status tells that."""

from __future__ import annotations

import tensorflow as tf

from keras_preempt.exit_codes import EXIT_WORKER_LOST
from keras_preempt.uncaught import exits_with


class WorkerLost(tf.errors.UnavailableError):
    """Another worker is gone without a notice, or cannot be reached any more: training cannot go on in this process.

    It is neither a preemption that was announced nor an error of the program. If it leaves the program, the exit
    status is 69 (EX_UNAVAILABLE) and not 1: start all workers again, and training continues from the last committed
    checkpoint. It is the `tf.errors.UnavailableError` that TensorFlow raises then, with its text.
    """

    def __init__(self, node_def: object, op: object, message: str, *arguments: object) -> None:
        super().__init__(node_def, op, message, *arguments)
        exits_with(self, EXIT_WORKER_LOST)


def lost(error: tf.errors.OpError) -> WorkerLost:
    """The error that TensorFlow has raised, as a `WorkerLost`."""
    return WorkerLost(error.node_def, error.op, error.message)
