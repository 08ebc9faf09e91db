"""The errors of JAX: what one says of another process, and how it is reported to that one.

Verified with JAX 0.10.2 on CPUs, where processes talk to each other by Gloo. What NCCL says of a lost process on GPUs
is taken from its sources, not run.
"""

from __future__ import annotations

import re

import jax

from keras_preempt.backend.jax import distributed
from keras_preempt.backend.seam import Errors
from keras_preempt.process.exit_codes import EXIT_WORKER_LOST, exits_with

_CODES = {
    "CANCELLED": 1,
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "OUT_OF_RANGE": 11,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "DATA_LOSS": 15,
    "UNAUTHENTICATED": 16,
}
"""The words with which the texts of JAX's errors begin, and the numbers of these codes (absl::StatusCode)."""

_WORDS = {number: word for word, number in _CODES.items()}
_BEGINNING = re.compile(rf"({'|'.join(_CODES)}): ")

_OF_JAX = re.compile(rf"{_BEGINNING.pattern}|Array has been deleted")
"""How texts of JAX begin; the second after a step that has failed, which takes the state and returns none."""

_LOST = re.compile(
    r"Gloo [\w-]+ failed|Connection (?:closed|reset) by peer|\bNCCL\b|ncclRemoteError|ncclSystemError"
    r"|heartbeat timeout|stopped sending heartbeats|CoordinationService|coordination service|different incarnation"
    r"|failed to connect to all addresses|Socket closed"
)
"""In texts of collectives and of the coordination service: another process is out of reach.

Seen with JAX 0.10.2: "UNKNOWN: Gloo all-reduce failed: [...] Connection closed by peer [127.0.0.1]:21383", as a
ValueError.
"""


class WorkerLost(RuntimeError):
    """Another process is gone without a notice, or cannot be reached any more: this one cannot continue training.

    It is neither a preemption that was announced nor an error of the program. If it leaves the program, the exit
    status is 69 (EX_UNAVAILABLE) and not 1: start all processes again, and training continues from the last committed
    checkpoint. JAX's own error is its cause.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        exits_with(self, EXIT_WORKER_LOST)


class JaxErrors(Errors):
    def described(self, error: BaseException) -> tuple[int, str]:
        text = str(error)
        if not _is_of_jax(error):
            return 0, text
        found = _BEGINNING.match(text)
        return _CODES[found[1]] if found else _CODES["UNKNOWN"], text

    def of_code(self, code: int, text: str) -> Exception | None:
        if code not in _WORDS:
            return None
        error: Exception = jax.errors.JaxRuntimeError(
            text if _BEGINNING.match(text) else f"{_WORDS[code]}: {text}"
        )
        return error

    def says_a_worker_is_gone(self, error: BaseException) -> bool:
        return isinstance(error, WorkerLost) or (_is_of_jax(error) and _LOST.search(str(error)) is not None)

    def lost(self, error: BaseException) -> WorkerLost:
        return error if isinstance(error, WorkerLost) else WorkerLost(str(error))

    def end_without_others(self) -> None:
        distributed.leave_alone_at_the_end()

    def before_a_hard_end(self) -> None:
        distributed.leave_one_after_the_other()  # Process 0 ends after the others, which get the error as well.


def _is_of_jax(error: BaseException) -> bool:
    """Whether JAX has raised an error; on CPUs it also raises ValueError with the text of a status."""
    if isinstance(error, (jax.errors.JaxRuntimeError, WorkerLost)):
        return True
    return isinstance(error, (RuntimeError, ValueError)) and _OF_JAX.match(str(error)) is not None
