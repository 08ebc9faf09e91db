"""How the workers of a fit begin together: one directory, one incarnation, one checkpoint to start from.

Worker 0 looks at the directory, claims the incarnation and proposes a checkpoint; every worker checks that it sees the
same directory, reads what it would restore, and says whether that verified; worker 0 decides. An error on
any worker becomes an error on all of them, before the first step.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from keras_preempt.agreement.coordinator import CoordinationLost, CoordinationTimeout, Coordinator
from keras_preempt.agreement.messages import Failure
from keras_preempt.agreement.rounds import key
from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import CheckpointError, NotFound
from keras_preempt.checkpoint.identity import check_or_create
from keras_preempt.checkpoint.layout import RUN, incarnation_file
from keras_preempt.checkpoint.reader import CheckpointInfo, Loaded, committed, load
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.process.exit_codes import EXIT_WORKER_LOST, exits_with

logger = logging.getLogger("keras_preempt")

START_TIMEOUT = 600.0
"""Seconds that one worker waits for another at the start: building a model and reading a checkpoint can take minutes
longer on one machine than on another."""

SHARED_WAIT = 10.0
"""Seconds within which a file that one worker wrote must be visible to the others; NFS caches directories."""

Read = Callable[[Store, CheckpointInfo, int, int], Loaded]


@dataclass(frozen=True)
class Start:
    """What the workers began with.

    Attributes:
        incarnation: The number of this start of the run, from 1.
        restored: The checkpoint to continue from, as this worker reads it, or None for a new run.
        name: The folder of that checkpoint; "" for a new run.
        skipped: Newer checkpoints that could not be used, each with the reason.
    """

    incarnation: int
    restored: Loaded | None
    name: str
    skipped: tuple[str, ...]


class StartError(RuntimeError):
    """The workers cannot begin together; nothing was changed in the directory."""


class WorkerMissing(StartError):
    """A worker did not appear, or is gone again. If nothing catches this, the exit status is that of a lost worker."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        exits_with(self, EXIT_WORKER_LOST)


class NoUsableCheckpoint(CheckpointError):
    """There are checkpoints, and not one of them can be restored; all files are kept."""

    def __init__(self, url: str, reasons: list[str]) -> None:
        told = "; ".join(reason.rstrip(".") for reason in reasons)
        super().__init__(
            f"Expected a checkpoint that can be restored in {url}. Received: {len(reasons)} that cannot: {told}. "
            "Nothing was changed. Repair the files, or train in another directory."
        )


def _accept(told: object) -> None:
    """Whatever was claimed or told, this start continues."""


def begin(
    coordinator: Coordinator,
    fit: int,
    store: Store,
    prepare: Callable[[], None],
    identity: Callable[[], Mapping[str, Any]],
    read: Read = load,
    settings: Mapping[str, Any] | None = None,
    claimed: Callable[[int], None] = _accept,
    beside: Collection[str] = (),
    tells: Mapping[str, Any] | None = None,
    told: Callable[[Mapping[int, Mapping[str, Any]]], None] = _accept,
) -> Start:
    """Agrees on how this fit begins. Called by every worker.

    Args:
        coordinator: How the workers talk to each other.
        fit: The number of this fit in this process.
        store: The run's directory.
        prepare: Makes the directory if need be and proves that this worker can write what it will have to. Worker 0
            calls it first; the others, whose credentials and disks may be others, when they see what it wrote.
        identity: Builds the model if need be and returns what `checkpoint.identity` compares.
        read: Reads and verifies what a worker, by its number and theirs, needs from a checkpoint. Called after
            `identity`.
        settings: JSON that worker 0 keeps with the claim of this start, for whoever looks at the directory.
        claimed: Given the number of this start when it is claimed, worker 0 may refuse to begin.
        beside: What else a new run's directory may hold, by name.
        tells: JSON that worker 0 is to know of this worker.
        told: Given what the workers tell, by their number; called on worker 0, when it has heard them all.

    Raises:
        CheckpointError: The directory cannot be used; the message says why and what to do.
        StartError: Another worker had an error, or did not appear (`WorkerMissing`).
        CoordinationLost: The worker that hosts the coordination service is gone.
    """
    beginning = _Beginning(
        _Handshake(coordinator, fit),
        store,
        prepare,
        identity,
        read,
        settings or {},
        claimed,
        beside,
        tells or {},
        told,
    )
    try:
        return beginning.lead() if coordinator.member == 0 else beginning.follow()
    except CoordinationLost as error:
        exits_with(error, EXIT_WORKER_LOST)
        raise


class _Handshake:
    def __init__(self, coordinator: Coordinator, fit: int) -> None:
        self.coordinator = coordinator
        self._prefix = key(fit, 0, "start")

    def say(self, name: str, value: Mapping[str, Any]) -> None:
        self.coordinator.put_if_absent(f"{self._prefix}/{name}", json.dumps(value))

    def hear(self, name: str, who: int, patience: float | None = None) -> dict[str, Any]:
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

    @contextlib.contextmanager
    def telling(self, name: str) -> Iterator[None]:
        """Tells an error of this worker to whoever waits for `name`, and raises it again."""
        try:
            yield
        except Exception as error:
            member = self.coordinator.member
            text = str(error) if isinstance(error, StartError) else f"Worker {member} cannot begin: {error}"
            failure = Failure(member, type(error).__name__, 0, text)
            self.coordinator.put_if_absent(f"{self._prefix}/{name}", failure.encode())
            raise


@dataclass(frozen=True)
class _Beginning:
    """One worker's side of a start; the attributes are the arguments of `begin`."""

    handshake: _Handshake
    store: Store
    prepare: Callable[[], None]
    identity: Callable[[], Mapping[str, Any]]
    read: Read
    settings: Mapping[str, Any]
    claimed: Callable[[int], None]
    beside: Collection[str]
    tells: Mapping[str, Any]
    told: Callable[[Mapping[int, Mapping[str, Any]]], None]

    def lead(self) -> Start:
        handshake, store = self.handshake, self.store
        made_by_us: list[str] = []
        try:
            with handshake.telling("claim"):
                described = dict(self.identity())
                self.prepare()
                if check_or_create(store, described, self.beside)["run_id"] == described["run_id"]:
                    made_by_us.append(RUN)
                settings = {**self.settings, "members": handshake.coordinator.members}
                incarnation = incarnations.claim(store, settings)
                made_by_us.append(incarnation_file(incarnation))
                self.claimed(incarnation)
                # After the claim: from then on a survivor of the last start does not commit any more.
                infos = committed(store)
                token = incarnations.read(store, incarnation)["token"]
            handshake.say(
                "claim", {"incarnation": incarnation, "token": token, "identity": _digest(described)}
            )
            with handshake.telling("proposal/0"):
                self.told({0: self.tells, **self._hear_all()})
            return self._propose(infos, incarnation)
        except Exception:
            # Nothing was written under this incarnation, so that nobody can miss it.
            for name in reversed(made_by_us):
                with contextlib.suppress(CheckpointError):
                    store.delete(name)
            raise

    def _hear_all(self) -> dict[int, Mapping[str, Any]]:
        """Waits for what each worker sees, also after one has failed: the others must find what they look for."""
        failed: StartError | None = None
        heard: dict[int, Mapping[str, Any]] = {}
        for other in range(1, self.handshake.coordinator.members):
            patience = None if failed is None else 2 * SHARED_WAIT
            try:
                heard[other] = self.handshake.hear(f"sees/{other}", other, patience)
            except StartError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return heard

    def _propose(self, infos: list[CheckpointInfo], incarnation: int) -> Start:
        handshake = self.handshake
        skipped: list[str] = []
        usable = [info for info in infos if _usable(info, skipped)]
        for number, info in enumerate(usable):
            handshake.say(f"proposal/{number}", {"name": info.directory, "skipped": skipped})
            with handshake.telling(f"verdict/{number}"):
                loaded, wrong = self._try(info)
                for other in range(1, handshake.coordinator.members):
                    answer = handshake.hear(f"read/{number}/{other}", other)
                    wrong = wrong or answer["wrong"]
            handshake.say(f"verdict/{number}", {"use": wrong is None})
            if wrong is None:
                assert loaded is not None
                return Start(incarnation, loaded, info.directory, tuple(skipped))
            skipped.append(wrong)
            logger.error("The checkpoint %s is not used: %s", info.directory, wrong)
        with handshake.telling(f"proposal/{len(usable)}"):
            if skipped:
                raise NoUsableCheckpoint(self.store.url, skipped)
        handshake.say(f"proposal/{len(usable)}", {"name": None})
        return Start(incarnation, None, "", ())

    def follow(self) -> Start:
        handshake, store, member = self.handshake, self.store, self.handshake.coordinator.member
        with handshake.telling(f"sees/{member}"):
            described = self.identity()
            claim = handshake.hear("claim", 0)
            incarnation = int(claim["incarnation"])
            _check_shared(store, incarnation, str(claim["token"]))
            if _digest(described) != claim["identity"]:
                raise StartError(
                    "Expected all workers to run the same program: the same model, optimizer and input. Received: "
                    f"another one on worker {member} than on worker 0. Start all workers with the same script."
                )
            self.prepare()
        handshake.say(f"sees/{member}", self.tells)
        number = 0
        while True:
            # Longer than worker 0 waits for the others: it then says which of them did not come.
            proposal = handshake.hear(f"proposal/{number}", 0, 2 * START_TIMEOUT)
            if proposal["name"] is None:
                return Start(incarnation, None, "", ())
            with handshake.telling(f"read/{number}/{member}"):
                found = [info for info in committed(store) if info.directory == proposal["name"]]
                if found:
                    loaded, wrong = self._try(found[0])
                else:
                    loaded, wrong = None, f"{proposal['name']} is not visible to worker {member}"
            handshake.say(f"read/{number}/{member}", {"wrong": wrong})
            if handshake.hear(f"verdict/{number}", 0, 2 * START_TIMEOUT)["use"]:
                assert loaded is not None
                return Start(incarnation, loaded, str(proposal["name"]), tuple(proposal["skipped"]))
            number += 1

    def _try(self, info: CheckpointInfo) -> tuple[Loaded | None, str | None]:
        coordinator = self.handshake.coordinator
        try:
            return self.read(self.store, info, coordinator.member, coordinator.members), None
        except (CheckpointError, OSError) as error:
            return None, f"{info.directory}: {error}"


def _digest(identity: Mapping[str, Any]) -> str:
    same_everywhere = {key: value for key, value in identity.items() if key != "run_id"}
    return hashlib.sha256(json.dumps(same_everywhere, sort_keys=True).encode()).hexdigest()


def _usable(info: CheckpointInfo, skipped: list[str]) -> bool:
    if info.error is None:
        return True
    skipped.append(f"{info.directory}: {info.error}")
    logger.error("The checkpoint %s is not used: %s", info.directory, info.error)
    return False


def _check_shared(store: Store, incarnation: int, token: str) -> None:
    limit = time.monotonic() + SHARED_WAIT
    pause, longest_pause = store.look_again
    while True:
        try:
            seen = incarnations.read(store, incarnation)["token"]
        except NotFound:
            seen = None
        if seen == token:
            return
        if time.monotonic() > limit:
            raise CheckpointError(
                f"Expected a directory that all workers share. Received: {store.url}, in which this worker "
                "does not see what worker 0 wrote. Give a path on a shared file system, or a bucket."
            )
        time.sleep(pause)  # Another machine's write cannot be waited for, only looked for.
        pause = min(2 * pause, longest_pause)
