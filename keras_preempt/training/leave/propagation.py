"""How the error of one worker ends the training of all workers: as the same error, with the number of the worker.

Without this the others would wait in a collective until they notice that one of them is gone, and then raise an
error that says no more than that. So the worker that fails tells the coordination service, which makes the
collectives of the others fail within milliseconds; their errors carry a `Failure`, from which the original one is
made again. Names and text only: nothing that comes from another process is ever evaluated or unpickled.
"""

from __future__ import annotations

import builtins
import contextlib
import enum
import logging
import os
import time
from collections.abc import Callable

from keras_preempt.agreement.coordinator import CoordinationLost, CoordinationTimeout, Coordinator
from keras_preempt.agreement.messages import Failure
from keras_preempt.backend.place import NO_WORKERS, RemoteWorkers
from keras_preempt.backend.seam import backend
from keras_preempt.notices.coordination_key import NOBODY, KeyWatch
from keras_preempt.process.exit_codes import EXIT_WORKER_LOST, exits_by

logger = logging.getLogger("keras_preempt")

_KEY = "keras_preempt/error/first"
_SEEN = "keras_preempt/error/seen"

LONGEST_TEXT = 8000
"""Characters of an error's text that are told to the others. Texts of 24,000 came through in tests."""

SEEN_TIMEOUT = 2.0
"""Seconds that the coordination leader stays after its own error: without it the others would not hear of that."""

PATIENCE = 3.0
"""Seconds that the main thread has to find out by itself that another worker has failed, as it does when that one is
gone, before an `ErrorWatch` ends the process."""

_LOOK_SECONDS = 0.5
_STATUS = 1  # As Python ends with for an error.
_NOT_THE_GIST = ("Graph execution error", "Detected at node", "File ")


class Origin(enum.Enum):
    """Where an error that ends a worker's training comes from."""

    OWN = "this worker"
    PEER = "another worker"
    LOST = "the loss of a worker"


def failure_of(error: BaseException, member: int) -> Failure:
    kind = type(error)
    code, text = backend().errors.described(error)
    plain = code or kind.__module__ == "builtins"
    name = kind.__name__ if plain else f"{kind.__module__}.{kind.__qualname__}"
    if len(text) > LONGEST_TEXT:
        half = LONGEST_TEXT // 2
        text = f"{text[:half]} [...] {text[-half:]}"
    return Failure(member, name, code, text)


def rebuilt_error(failure: Failure) -> Exception:
    """Returns the same type of exception with the same text, and the number of the worker before it.

    A class that is neither a builtin nor the backend's, or that cannot be made from a text alone, is a
    RuntimeError that names it. The loss of a third worker is no error of the one that tells of it.
    """
    error = _rebuilt(failure, f"Worker {failure.member}")
    if not backend().errors.says_a_worker_is_gone(error):
        return error
    return _rebuilt(failure, f"Worker {failure.member} reports that another one is gone")


def _rebuilt(failure: Failure, who: str) -> Exception:
    text = f"{who}: {failure.text}"
    if (of_backend := backend().errors.of_code(failure.code, text)) is not None:
        return of_backend
    kind = vars(builtins).get(failure.type)
    # A StopIteration would not end a loop over data with an error, but without one.
    if (
        isinstance(kind, type)
        and issubclass(kind, Exception)
        and not issubclass(kind, (StopIteration, StopAsyncIteration))
    ):
        with contextlib.suppress(TypeError):
            return kind(text)
    return RuntimeError(f"{who}: {failure.type}: {failure.text}")


class Propagation:
    """Tells all workers of an error that ends the training of one of them.

    `remote` are the workers that this process computes on, which can be lost as well. `origin` says where the error
    that has ended the training comes from; None as long as there is none.
    """

    def __init__(self, coordinator: Coordinator, *, remote: RemoteWorkers = NO_WORKERS) -> None:
        self._coordinator = coordinator
        self._remote = remote
        self.origin: Origin | None = None
        self._look_at = 0.0
        self._out_of_reach = False  # No call to the service comes back.

    def settle(self, error: BaseException) -> BaseException:
        """Takes an error on its way out of the training; tells the others if it is this worker's own.

        Returns what to raise: `error` itself; the error of the other worker, if it only stands for that; or a
        `WorkerLost`.
        """
        self._out_of_reach = backend().errors.says_the_service_is_out_of_reach(error)
        if self._coordinator.members > 1:
            backend().errors.end_without_others()
        failure = self._of_a_peer(error)
        if failure is not None:
            return self._heard(failure)
        can_lose = self._remote or self._coordinator.members > 1
        if self.origin is None and can_lose and backend().errors.says_a_loss(error, self._remote):
            self.origin = Origin.LOST
            tell_loss(str(error))
            self._tell(failure_of(error, self._coordinator.member))
            return backend().errors.lost(error)
        if self.origin is None:
            self.origin = Origin.OWN
            if self._coordinator.members > 1:
                logger.info("This worker has failed, and tells the others: %s.", type(error).__name__)
            self._tell(failure_of(error, self._coordinator.member))
        return error

    def has_ended_elsewhere(self) -> bool:
        """Whether another worker has told of an error; asks the coordination service at most once a second."""
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + 1.0
        return self._look() is not None

    def watch(self) -> ErrorWatch | None:
        """Returns what ends this process if it hangs after another one has failed; None where the backend does that."""
        if self._coordinator.members == 1 or backend().errors.ends_collectives:
            return None
        return ErrorWatch(self._coordinator, _KEY, self._heard)

    def told(self) -> Exception | None:
        """Returns the error of which another worker has told, if one has; asks the coordination service once."""
        failure = self._look()
        return None if failure is None else self._heard(failure)

    def left(self) -> None:
        """Tells the others that this worker has left its training by an error that was not seen on its way."""
        if self.origin is None:
            self.origin = Origin.OWN
            text = "its fit was left by an exception; see its log"
            self._tell(Failure(self._coordinator.member, "RuntimeError", 0, text))

    def _heard(self, failure: Failure) -> Exception:
        with contextlib.suppress(CoordinationLost):
            self._coordinator.put_if_absent(f"{_SEEN}/{self._coordinator.member}", "1")
        error = rebuilt_error(failure)
        # No worker calls that an error of its own: it has lost another one, maybe a moment before this one does.
        is_loss = backend().errors.says_a_worker_is_gone(error)
        if self.origin is None and is_loss:
            self.origin = Origin.LOST
            tell_loss(f"worker {failure.member} reports it: {gist(failure.text)}")
        elif self.origin is None:
            self.origin = Origin.PEER
            logger.error(
                "Worker %d has failed, and so all workers end: %s: %s. This is an error of the program, not a "
                "preemption; the last committed checkpoint is kept.",
                failure.member,
                failure.type,
                gist(failure.text),
            )
        return backend().errors.lost(error) if is_loss else error

    def _of_a_peer(self, error: BaseException) -> Failure | None:
        code, text = backend().errors.described(error)
        if not code:
            return None
        failure = Failure.decode(text)
        if failure is None and backend().errors.may_hide_another(error) and self._coordinator.members > 1:
            # The connection to the worker that failed may break before its message is here.
            failure = self._look()
        if failure is not None and failure.member == self._coordinator.member:
            return None
        return failure

    def _look(self) -> Failure | None:
        if self._coordinator.members == 1 or self._out_of_reach:
            return None
        try:
            # Not by a wait that ends without the key: TensorFlow keeps such a request forever.
            if self._coordinator.put_if_absent(_KEY, NOBODY):
                self._coordinator.delete(_KEY)
                return None
            failure = Failure.decode(self._coordinator.wait_for(_KEY, _LOOK_SECONDS))
        except (CoordinationTimeout, CoordinationLost):
            return None
        return None if failure is None or failure.member == self._coordinator.member else failure

    def _tell(self, failure: Failure) -> None:
        coordinator = self._coordinator
        if coordinator.members == 1 or self._out_of_reach:
            return
        code = backend().errors.code_to_report(failure.code)
        try:
            first = coordinator.put_if_absent(_KEY, failure.encode())
            coordinator.report_error(failure.encode(), code)
            if first and coordinator.member == 0 and self.origin is Origin.OWN:
                limit = time.monotonic() + SEEN_TIMEOUT
                if not backend().errors.ends_collectives:
                    limit += PATIENCE  # They may be waiting in a collective; allow for its timeout.
                with contextlib.suppress(CoordinationTimeout):
                    for other in range(1, coordinator.members):
                        coordinator.wait_for(f"{_SEEN}/{other}", limit - time.monotonic())
        except CoordinationLost as error:
            logger.info("The other workers could not be told of the error: %s", error)


def tell_uncaught_loss() -> None:
    """Makes the loss of a worker end the process with its exit status also where no fit can see the error.

    Before a fit calls its callbacks, and where a program makes its model, variables are created on all workers
    together, and nothing of this package is called that could see it.
    """
    exits_by(_status_of_loss)


def _status_of_loss(error: BaseException) -> int | None:
    errors = backend().errors
    said = error
    if isinstance(error, RuntimeError) and error.__context__ is not None:
        # Keras, where it builds a model, raises one in the other's place (`from None`) that quotes its text.
        code, text = errors.described(error.__context__)
        said = error.__context__ if code and text in str(error) else error
    if not errors.says_a_worker_is_gone(said) or not backend().in_a_cluster():
        return None
    errors.end_without_others()
    tell_loss(errors.described(said)[1])
    return EXIT_WORKER_LOST


def tell_loss(text: str) -> None:
    """Logs that another worker is gone, according to an error with this text, and what that means."""
    logger.error(
        "Another worker is gone, or cannot be reached: %s. This is neither a preemption that was announced to this job "
        "nor an error of its program. Start all workers again: training continues from the last committed checkpoint. "
        "The exit status is %d unless the program catches this error.",
        gist(text),
        EXIT_WORKER_LOST,
    )


def gist(text: str) -> str:
    """Returns the first line of an error's text that says what is wrong; TensorFlow's begin with where it is."""
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith(_NOT_THE_GIST):
            return line[:500]
    return text.strip()[:500]


class ErrorWatch(KeyWatch):
    """Waits under a key for the error of another worker, until training ends, and then ends the process.

    For a process that waits in a collective for a worker which has failed, where no exception reaches it: on JAX the
    main thread waits inside of XLA until the failed process has gone. `heard` is called when the main thread did not
    find out: it logs the error, and tells that it was heard. `end` ends the process; for tests.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        key: str,
        heard: Callable[[Failure], object],
        end: Callable[[], None] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(coordinator, key, "keras_preempt-error-watch")
        self._heard = heard
        self._end = end or _end_process
        self._patience = patience

    def _hear(self, value: str) -> bool:
        failure = Failure.decode(value)
        if failure is None:
            return False
        if failure.member != self._coordinator.member and not self._stopped.wait(self._patience):
            self._heard(failure)
            self._end()
        return True


def _end_process() -> None:
    backend().errors.before_a_hard_end()
    with contextlib.suppress(Exception):  # The program's handlers may raise anything.
        logging.shutdown()
    os._exit(_STATUS)
