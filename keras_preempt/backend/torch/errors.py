"""The errors of torch: one process trains by itself, so none of them says that another one is gone."""

from __future__ import annotations

from keras_preempt.backend.seam import Errors
from keras_preempt.process.exit_codes import EXIT_WORKER_LOST, exits_with


class WorkerLost(RuntimeError):
    """Another worker is gone without a notice; the exit status is 69. On torch, where one process trains, never raised.

    It is there so that a program can name it on every backend.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        exits_with(self, EXIT_WORKER_LOST)


class TorchErrors(Errors):
    def lost(self, error: BaseException) -> WorkerLost:
        return error if isinstance(error, WorkerLost) else WorkerLost(str(error))
