"""How the workers of a fit agree at its beginning: each says what it has, and worker 0 decides."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from keras_preempt.agreement.coordinator import CoordinationLost, CoordinationTimeout, Coordinator
from keras_preempt.agreement.messages import Failure, key
from keras_preempt.checkpoint.errors import CheckpointError, why_unusable
from keras_preempt.process.exit_codes import EXIT_WORKER_LOST, exit_status_of, exits_with

START_TIMEOUT = 600.0
"""Seconds that one worker waits for another at the start: building a model and reading a checkpoint can take minutes
longer on one machine than on another."""

Result = TypeVar("Result")


class StartError(RuntimeError):
    """The workers cannot begin together; nothing was changed in the directory."""


class WorkerMissing(StartError):
    """A worker did not appear, or is gone. The exit status is that of a lost worker unless something catches this."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        exits_with(self, EXIT_WORKER_LOST)


class Handshake:
    """One worker's side of the agreement on how its process' fit number `fit` begins."""

    def __init__(self, coordinator: Coordinator, fit: int) -> None:
        self.coordinator = coordinator
        self._prefix = key(fit, 0, "start")

    def say(self, name: str, value: Mapping[str, Any]) -> None:
        self.coordinator.put_if_absent(f"{self._prefix}/{name}", json.dumps(value))

    def hear(self, name: str, who: int, patience: float | None = None) -> dict[str, Any]:
        """Waits for what a worker says under `name`, by default for `START_TIMEOUT`.

        Raises `StartError` if that worker had an error, and `WorkerMissing` if it did not say anything in time.
        """
        patience = START_TIMEOUT if patience is None else patience
        try:
            text = self.coordinator.wait_for(f"{self._prefix}/{name}", patience)
        except CoordinationTimeout as error:
            raise WorkerMissing(
                f"Expected worker {who} to begin its fit too. Received: nothing within {patience:.0f} s. "
                "Every worker must call model.fit with a PreemptionCallback; see that worker's log."
            ) from error
        failure = Failure.decode(text)
        if failure is not None:
            raise (WorkerMissing if failure.type == WorkerMissing.__name__ else StartError)(failure.text)
        value: dict[str, Any] = json.loads(text)
        return value

    def hear_leader(self, name: str) -> dict[str, Any]:
        """Waits for worker 0, longer than it waits for the others, so that it can say which of them did not come."""
        return self.hear(name, 0, 2 * START_TIMEOUT)

    @contextlib.contextmanager
    def telling(self, name: str) -> Iterator[None]:
        """Tells what ends the start of this worker to whoever waits for `name`, and raises it again."""
        try:
            yield
        except BaseException as error:
            try:
                self._tell(error, name)
            except CoordinationLost:
                if exit_status_of(error) is None:
                    raise
                # Else the error already says that a worker is gone, and how that is known.
            raise

    @contextlib.contextmanager
    def telling_of_interrupt(self, *names: str) -> Iterator[None]:
        """Tells of Ctrl-C or an exit, which come at any moment, to whoever waits for one of `names` next."""
        try:
            yield
        except Exception:
            raise
        except BaseException as error:
            with contextlib.suppress(CoordinationLost):
                for name in names:
                    self._tell(error, name)
            raise

    def _tell(self, error: BaseException, name: str) -> None:
        member, kind = self.coordinator.member, type(error).__name__
        if isinstance(error, StartError):
            text = str(error)
        elif isinstance(error, Exception):
            text = f"Worker {member} cannot begin: {error}"
        else:
            text = f"Worker {member} was ended while it began its fit ({kind})."
        failure = Failure(member, kind, 0, text)
        self.coordinator.put_if_absent(f"{self._prefix}/{name}", failure.encode())

    def telling_of(self, stage: str) -> contextlib.AbstractContextManager[None]:
        """Tells an error of this worker to those that wait for it in a stage."""
        member = self.coordinator.member
        return self.telling(f"{stage}/verdict" if member == 0 else f"{stage}/{member}")

    def agree(
        self,
        stage: str,
        about: str,
        call: Callable[[], Result],
        same: Callable[[Result], str] = lambda result: "",
        fails_by: tuple[type[Exception], ...] = (CheckpointError, OSError),
    ) -> tuple[Result | None, str | None]:
        """Makes a call on all workers, which succeeds on all of them or on none.

        `stage` names it, as nothing else in this start, and `about` says what it is about. `same` returns what has to
        be the same on all workers. The call fails by the errors `fails_by`; any other ends the start of all workers.
        Returns what the call has returned here, and None; or None, and what was wrong on one of the workers.
        """
        member = self.coordinator.member
        result: Result | None = None
        wrong, seen = None, ""
        with self.telling_of(stage):
            try:
                result = call()
                seen = same(result)
            except fails_by as error:
                wrong = why_unusable(about, error)
            for other in range(1, self.coordinator.members) if member == 0 else ():
                answer = self.hear(f"{stage}/{other}", other)
                if answer["wrong"] is None and answer["seen"] != seen and wrong is None:
                    wrong = f"worker {other} sees other files in it than worker 0"
                wrong = wrong or answer["wrong"]
        if member == 0:
            self.say(f"{stage}/verdict", {"wrong": wrong})
        else:
            self.say(f"{stage}/{member}", {"wrong": wrong, "seen": seen})
            wrong = self.hear_leader(f"{stage}/verdict")["wrong"]
        return (result, None) if wrong is None else (None, str(wrong))

    def is_shared(self, stage: str, value: str) -> bool:
        """Returns whether all workers say the same in a stage; each of them has to ask."""
        return self.agree(stage, stage, lambda: value, same=str)[1] is None
