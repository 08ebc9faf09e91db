"""How the workers of a fit begin together: one directory, one incarnation, one checkpoint to start from.

Worker 0 looks at the directory, claims the incarnation and proposes a checkpoint; every worker checks that it sees the
same directory, reads what it would restore, and says whether that verified; worker 0 decides. An error on
any worker becomes an error on all of them, before the first step.

A checkpoint may be proposed to be read together: each worker reads a share, and when all have theirs, they exchange
them. If either fails on one worker, the same checkpoint is proposed again, for each worker to read all of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from keras_preempt.agreement.coordinator import CoordinationLost, Coordinator
from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import CheckpointError, NotFound, why_unusable
from keras_preempt.checkpoint.identity import check_or_create
from keras_preempt.checkpoint.layout import RUN, incarnation_file
from keras_preempt.checkpoint.other_workers import SETUP
from keras_preempt.checkpoint.reader import CheckpointInfo, Loaded, find, load, newest_first
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.process.exit_codes import EXIT_WORKER_LOST, exits_with
from keras_preempt.training.handshake import Handshake, StartError
from keras_preempt.training.propagation import tell_loss

logger = logging.getLogger("keras_preempt")

SHARED_WAIT = 10.0
"""Seconds within which a file that one worker wrote must be visible to the others; NFS caches directories."""

Read = Callable[[Store, CheckpointInfo, int, int], Loaded]


class Share(Protocol):
    """What a worker has read of a checkpoint that all read together."""

    @property
    def plan(self) -> str:
        """The same for all workers that can exchange their shares."""

    def exchange(self) -> Loaded:
        """Exchanges the shares with the other workers, who do it at the same time.

        Raises:
            CheckpointError: What has arrived is not what was written; the other workers did not wait for it.
            Exception: The exchange has ended, for all workers: training is not possible.
        """


ReadShare = Callable[[Store, CheckpointInfo, int, int], Share]


@dataclass(frozen=True)
class Start:
    """What the workers began with.

    Attributes:
        incarnation: The number of this start of the run, from 1.
        restored: The checkpoint to continue from, as this worker reads it, or None for a new run.
        name: The folder of that checkpoint; "" for a new run.
        skipped: Newer checkpoints that could not be used, each with the reason.
        exchanged: Whether the workers have read it together.
    """

    incarnation: int
    restored: Loaded | None
    name: str
    skipped: tuple[str, ...]
    exchanged: bool = False


class NoUsableCheckpoint(CheckpointError):
    """There are checkpoints, and not one of them can be restored; all files are kept."""

    def __init__(self, url: str, reasons: list[str]) -> None:
        told = "; ".join(reasons)
        super().__init__(
            f"Expected a checkpoint that can be restored in {url}. Received: {len(reasons)} that cannot: {told}. "
            "Nothing was changed. Put the files back from a copy, or train in another directory; "
            "keras-preempt inspect DIR --verify checks each of them."
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
    read_share: ReadShare | None = None,
    together: bool = False,
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
        read_share: Reads and verifies a worker's share of what it needs, like `read`; None if there is no exchange.
        together: Whether worker 0 proposes to read checkpoints so.

    Raises:
        CheckpointError: The directory cannot be used; the message says why and what to do.
        StartError: Another worker had an error, or did not appear (`WorkerMissing`).
        CoordinationLost: The worker that hosts the coordination service is gone.
    """
    beginning = _Beginning(
        Handshake(coordinator, fit),
        store,
        prepare,
        identity,
        read,
        settings or {},
        claimed,
        beside,
        tells or {},
        told,
        read_share,
        together and read_share is not None,
    )
    try:
        return beginning.lead() if coordinator.member == 0 else beginning.follow()
    except CoordinationLost as error:
        exits_with(error, EXIT_WORKER_LOST)
        tell_loss(str(error))
        raise


@dataclass(frozen=True)
class _Beginning:
    """One worker's side of a start; the attributes are the arguments of `begin`."""

    handshake: Handshake
    store: Store
    prepare: Callable[[], None]
    identity: Callable[[], Mapping[str, Any]]
    read: Read
    settings: Mapping[str, Any]
    claimed: Callable[[int], None]
    beside: Collection[str]
    tells: Mapping[str, Any]
    told: Callable[[Mapping[int, Mapping[str, Any]]], None]
    read_share: ReadShare | None
    together: bool

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
                token = incarnations.read(store, incarnation)["token"]
            handshake.say(
                "claim",
                {
                    "incarnation": incarnation,
                    "token": token,
                    "identity": _digest(described),
                    "setup": described.get(SETUP),
                },
            )
            with handshake.telling("proposal/0"):
                self.told({0: self.tells, **self._hear_all()})
            # After the claim: from then on a survivor of the last start does not commit any more.
            return self._propose(newest_first(store), incarnation)
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

    def _propose(self, infos: Iterator[CheckpointInfo], incarnation: int) -> Start:
        handshake = self.handshake
        skipped: list[str] = []
        number = 0
        while True:
            with handshake.telling(f"proposal/{number}"):
                info = next(infos, None)
                if info is None and skipped:
                    raise NoUsableCheckpoint(self.store.url, skipped)
            if info is None:
                break
            if not _usable(info, skipped):
                continue
            for together in (True, False) if self.together else (False,):
                proposal = {"name": info.directory, "skipped": skipped, "together": together}
                handshake.say(f"proposal/{number}", proposal)
                loaded, wrong = self._read(number, info, together)
                number += 1
                if loaded is not None:
                    return Start(incarnation, loaded, info.directory, tuple(skipped), together)
            assert wrong is not None
            _skip(info.directory, wrong, skipped)
        handshake.say(f"proposal/{number}", {"name": None})
        return Start(incarnation, None, "", ())

    def follow(self) -> Start:
        handshake, store, member = self.handshake, self.store, self.handshake.coordinator.member
        with handshake.telling(f"sees/{member}"):
            described = self.identity()
            claim = handshake.hear("claim", 0)
            incarnation = int(claim["incarnation"])
            _check_shared(store, incarnation, str(claim["token"]))
            if _digest(described) != claim["identity"]:
                _check_batches(described.get(SETUP), claim["setup"], member)
                raise StartError(
                    "Expected all workers to run the same program: the same model, optimizer and input. Received: "
                    f"another one on worker {member} than on worker 0. Start all workers with the same script."
                )
            self.prepare()
        handshake.say(f"sees/{member}", self.tells)
        number = 0
        while True:
            proposal = handshake.hear_leader(f"proposal/{number}")
            if proposal["name"] is None:
                return Start(incarnation, None, "", ())
            name, together = str(proposal["name"]), bool(proposal["together"])
            loaded, _ = self._read(number, self._find(number, name), together)
            if loaded is not None:
                return Start(incarnation, loaded, name, tuple(proposal["skipped"]), together)
            number += 1

    def _find(self, number: int, name: str) -> CheckpointInfo:
        with self.handshake.telling(f"read/{number}/{self.handshake.coordinator.member}"):
            if (info := find(self.store, name)) is not None:
                return info
        why = CheckpointError(f"not visible to worker {self.handshake.coordinator.member}")
        return CheckpointInfo(0, "", name, None, why)

    def _read(
        self, number: int, info: CheckpointInfo, together: bool
    ) -> tuple[Loaded, None] | tuple[None, str]:
        """Reads a proposed checkpoint; returns it, or what is wrong with it on one of the workers."""
        where = (self.store, info, self.handshake.coordinator.member, self.handshake.coordinator.members)
        if not together:
            return self.handshake.agree(f"read/{number}", info.directory, lambda: self.read(*where))
        read_share = self.read_share
        assert read_share is not None, "all workers run one program"
        share, wrong = self.handshake.agree(
            f"read/{number}", info.directory, lambda: read_share(*where), lambda share: share.plan
        )
        loaded: Loaded | None = None
        if share is not None:
            # Any other error has broken the exchange, and with it what training needs.
            loaded, wrong = self.handshake.agree(
                f"exchange/{number}", info.directory, share.exchange, fails_by=(CheckpointError,)
            )
        if loaded is not None:
            return loaded, None
        assert wrong is not None
        logger.warning(
            "The workers could not read %s together, so each reads all of it: %s", info.directory, wrong
        )
        return None, wrong


def _digest(identity: Mapping[str, Any]) -> str:
    same_everywhere = {key: value for key, value in identity.items() if key != "run_id"}
    return hashlib.sha256(json.dumps(same_everywhere, sort_keys=True).encode()).hexdigest()


def _check_batches(own: object, of_leader: object, member: int) -> None:
    """Makes sure that this worker has as many batches as worker 0: the one with fewer would wait for ever at their end.

    Raises:
        StartError: It has another number.
    """
    here, there = (setup.get("batches") if isinstance(setup, Mapping) else None for setup in (own, of_leader))
    if here != there:
        raise StartError(
            f"Expected the same number of batches in an epoch on all workers. Received: {here} on worker {member}, "
            f"{there} on worker 0. Give each worker as many samples, or pass steps_per_epoch."
        )


def _usable(info: CheckpointInfo, skipped: list[str]) -> bool:
    if info.error is None:
        return True
    _skip(info.directory, why_unusable(info.directory, info.error), skipped)
    return False


def _skip(directory: str, why: str, skipped: list[str]) -> None:
    skipped.append(f"{directory}: {why}")
    logger.error("The checkpoint %s is not used: %s.", directory, why)


def _check_shared(store: Store, incarnation: int, token: str) -> None:
    limit = time.monotonic() + SHARED_WAIT
    pause, longest_pause = store.poll_interval
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
