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
import operator
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from keras_preempt.agreement.coordinator import CoordinationLost
from keras_preempt.checkpoint import in_memory, incarnations
from keras_preempt.checkpoint.errors import CheckpointError, NotFound, why_unusable
from keras_preempt.checkpoint.finding import CheckpointInfo, find, newest_first
from keras_preempt.checkpoint.identity import check_or_create
from keras_preempt.checkpoint.in_memory import HELD, InMemory
from keras_preempt.checkpoint.layout import RUN, incarnation_file
from keras_preempt.checkpoint.part_lists import PartLists
from keras_preempt.checkpoint.reader import Loaded, load
from keras_preempt.checkpoint.setup import SETUP
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.process.exit_codes import EXIT_WORKER_LOST, exits_with
from keras_preempt.training.leave.propagation import tell_loss
from keras_preempt.training.save.resuming import Start
from keras_preempt.training.start.handshake import Handshake, StartError
from keras_preempt.training.start.reading_together import Share

logger = logging.getLogger("keras_preempt")

SHARED_WAIT = 10.0
"""Seconds within which a file that one worker wrote must be visible to the others; NFS caches directories."""

_STAGES = ("given", "taken", "lists", "read", "exchange")
"""Of one proposal, in each of which worker 0 waits for the others; the first two of one in memory."""


class NoUsableCheckpoint(CheckpointError):
    """None of the checkpoints can be restored; all files are kept."""

    def __init__(self, url: str, reasons: list[str]) -> None:
        told = "; ".join(reasons)
        super().__init__(
            f"Expected a checkpoint that can be restored in {url}. Received: {len(reasons)} that cannot: {told}. "
            "Nothing was changed. Put the files back from a copy, or train in another directory; "
            "keras-preempt inspect DIR --verify checks each of them."
        )


class Startup:
    """One worker's side of a start. A fit derives its own from this: what it is, and how it reads a checkpoint.

    Attributes:
        together: Whether worker 0 proposes to read checkpoints together.
        tells: Whether it proposes that one worker reads each part list, and gives it to the others.
        settings: JSON that worker 0 keeps with the claim of this start, for whoever looks at the directory.
        beside: What else a new run's directory may hold, by name.
        facts: JSON that worker 0 is to know of this worker.
    """

    together = False
    tells = False
    settings: Mapping[str, Any] = {}
    beside: Collection[str] = ()
    facts: Mapping[str, Any] = {}

    def __init__(self, store: Store, handshake: Handshake) -> None:
        self.store = store
        self.handshake = handshake

    def identity(self) -> Mapping[str, Any]:
        """Builds the model if need be and returns what `checkpoint.identity` compares. Called first."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Makes the directory if need be and proves that this worker can write what it will have to.

        Called by worker 0 first; by the others, whose credentials and disks may differ, when they see what it wrote.
        """
        self.store.prepare()

    def hold(self, run_id: str) -> list[str]:
        """Looks for checkpoints of this run in the memory of this machine; returns their manifests."""
        return []

    def claimed(self, incarnation: int) -> None:
        """Called on worker 0 when it has claimed the number of this start; it may refuse to begin."""

    def compare(self, facts: Mapping[int, Mapping[str, Any]]) -> None:
        """Called on worker 0 with the facts of all workers, by their number."""

    def read(self, info: CheckpointInfo) -> Loaded:
        """Reads and verifies what this worker needs from a checkpoint."""
        return load(self.store, info, self.handshake.coordinator.member, self.handshake.coordinator.members)

    def read_share(self, info: CheckpointInfo) -> Share:
        """Reads and verifies this worker's share of that."""
        raise NotImplementedError

    def give(self, data: bytes) -> list[bytes]:
        """Gives bytes to the other workers, who do it at the same time; returns those of each, by number.

        After an error it has ended for all workers, and training is not possible.
        """
        raise NotImplementedError

    def meet(self, number: int, info: InMemory) -> str | None:
        """Has the workers give each other the small files of a checkpoint in memory; returns what is wrong with it."""
        raise NotImplementedError

    def agree(self) -> Start:
        """Agrees on how this fit begins. Called by every worker.

        Raises CheckpointError if the directory cannot be used, StartError if another worker had an error or did not
        appear, and CoordinationLost if the worker that hosts the coordination service is gone.
        """
        try:
            return self._lead() if self.handshake.coordinator.member == 0 else self._follow()
        except CoordinationLost as error:
            exits_with(error, EXIT_WORKER_LOST)
            tell_loss(str(error))
            raise

    def _lead(self) -> Start:
        handshake, store = self.handshake, self.store
        made_by_us: list[str] = []
        try:
            with handshake.telling("claim"):
                described = dict(self.identity())
                self.prepare()
                run_id = str(check_or_create(store, described, self.beside)["run_id"])
                if run_id == described["run_id"]:
                    made_by_us.append(RUN)
                settings = {**self.settings, "members": handshake.coordinator.members}
                incarnation = incarnations.claim(store, settings)
                made_by_us.append(incarnation_file(incarnation))
                self.claimed(incarnation)
                token = incarnations.read_claim(store, incarnation)["token"]
            claim = {"incarnation": incarnation, "token": token, "run_id": run_id}
            handshake.say("claim", {**claim, "identity": _digest(described), "setup": described.get(SETUP)})
            with handshake.telling("proposal/0"):
                heard = {0: {**self.facts, HELD: self.hold(run_id)}, **self._hear_all()}
                self.compare(heard)
                held = in_memory.checkpoints(heard)
            # After the claim: from then on a survivor of the last start does not commit any more.
            return self._propose(self._candidates(held), incarnation)
        except Exception:
            # Nothing was written under this incarnation, so that nobody can miss it.
            for name in reversed(made_by_us):
                with contextlib.suppress(CheckpointError):
                    store.delete(name)
            raise

    def _hear_all(self) -> dict[int, Mapping[str, Any]]:
        """Waits for what each worker sees, also after one has failed: the others still need what worker 0 wrote."""
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

    def _candidates(self, held: Iterable[InMemory]) -> Iterator[CheckpointInfo]:
        """Finds the checkpoints of the directory, and before them those in memory that are further."""
        stored = newest_first(self.store)
        newest = next(stored, None)
        for info in held:
            if newest is None or info.continues(newest):
                yield replace(info, stored="" if newest is None else newest.directory)
        if newest is not None:
            yield newest
        yield from stored

    def _propose(self, infos: Iterator[CheckpointInfo], incarnation: int) -> Start:
        skipped: list[str] = []
        number = 0
        while True:
            with self.handshake.telling(f"proposal/{number}"):
                info = next(infos, None)
                if info is None and skipped:
                    raise NoUsableCheckpoint(self.store.url, skipped)
            if info is None:
                self.handshake.say(f"proposal/{number}", {"name": None})
                return Start(incarnation, None, "", ())
            wrong: str | None
            if info.error is not None:
                wrong = why_unusable(info.directory, info.error)
            else:
                held = isinstance(info, InMemory)
                first = (held, False) if held else (self.together, self.tells)
                for together, tells in (first, (False, False)) if any(first) and not held else (first,):
                    proposal: dict[str, Any] = {
                        "name": info.directory,
                        "skipped": skipped,
                        "together": together,
                        "tells": tells,
                    }
                    if isinstance(info, InMemory):
                        proposal["memory"] = info.to_json()
                    self.handshake.say(f"proposal/{number}", proposal)
                    loaded, wrong = self._read(number, info, together, tells)
                    number += 1
                    if loaded is not None:
                        return _start(incarnation, loaded, info, skipped, together)
            if isinstance(info, InMemory):
                logger.warning("The checkpoint in memory %s is not used: %s.", info.directory, wrong)
                continue
            skipped.append(f"{info.directory}: {wrong}")
            logger.error("The checkpoint %s is not used: %s.", info.directory, wrong)

    def _follow(self) -> Start:
        handshake, member = self.handshake, self.handshake.coordinator.member
        with handshake.telling(f"sees/{member}"):
            described = self.identity()
            claim = handshake.hear("claim", 0)
            incarnation = int(claim["incarnation"])
            _check_shared(self.store, incarnation, str(claim["token"]))
            if _digest(described) != claim["identity"]:
                setups = described.get(SETUP), claim["setup"]
                here, there = (each.get("batches") if isinstance(each, Mapping) else None for each in setups)
                if here != there:  # The one with fewer would wait forever.
                    raise StartError(
                        f"Expected the same number of batches in an epoch on all workers. Received: {here} on worker "
                        f"{member}, {there} on worker 0. Give each worker as many samples, or pass steps_per_epoch."
                    )
                raise StartError(
                    "Expected all workers to run the same program: the same model, optimizer and input. Received: "
                    f"another one on worker {member} than on worker 0. Start all workers with the same script."
                )
            self.prepare()
            held = self.hold(str(claim["run_id"]))
        handshake.say(f"sees/{member}", {**self.facts, HELD: held})
        number = 0
        while True:
            stages = [f"{stage}/{n}" for n in (number, number + 1) for stage in _STAGES]
            with handshake.telling_of_interrupt(*(f"{stage}/{member}" for stage in stages)):
                proposal = handshake.hear_leader(f"proposal/{number}")
                if proposal["name"] is None:
                    return Start(incarnation, None, "", ())
                name, memory = str(proposal["name"]), proposal.get("memory")
                together, tells = bool(proposal["together"]), bool(proposal["tells"])
                stage = "given" if memory is not None else "lists" if tells else "read"
                with handshake.telling(f"{stage}/{number}/{member}"):
                    info = find(self.store, name) if memory is None else InMemory.from_json(memory)
                if info is None:
                    why = CheckpointError(f"not visible to worker {member}")
                    info = CheckpointInfo(0, "", name, None, why)
                loaded, _ = self._read(number, info, together, tells)
                if loaded is not None:
                    return _start(incarnation, loaded, info, proposal["skipped"], together)
            number += 1

    def _read(
        self, number: int, info: CheckpointInfo, together: bool, tells: bool
    ) -> tuple[Loaded | None, str | None]:
        """Reads a proposed checkpoint; returns it, or what is wrong with it on one of the workers."""
        if isinstance(info, InMemory):
            wrong = self.meet(number, info)
            if wrong is not None:
                return None, wrong
            return self._read_by(number, info, together=self.handshake.coordinator.members > 1)
        whole, wrong = self._tell_lists(number, info) if tells else (info, None)
        loaded: Loaded | None = None
        if whole is not None:
            loaded, wrong = self._read_by(number, whole, together=together)
        if loaded is None and (together or tells):
            logger.warning(
                "The workers could not read %s together, so each reads all of it: %s", info.directory, wrong
            )
        return loaded, wrong

    def _read_by(
        self, number: int, info: CheckpointInfo, *, together: bool
    ) -> tuple[Loaded | None, str | None]:
        agree, about = self.handshake.agree, info.directory
        if not together:
            return agree(f"read/{number}", about, lambda: self.read(info))
        share, wrong = agree(
            f"read/{number}", about, lambda: self.read_share(info), operator.attrgetter("reading.plan")
        )
        if share is None:
            return None, wrong
        # Any other error has broken the exchange, and with it what training needs.
        return agree(f"exchange/{number}", about, share.exchange, fails_by=(CheckpointError,))

    def _tell_lists(self, number: int, info: CheckpointInfo) -> tuple[CheckpointInfo | None, str | None]:
        """Reads part lists, each on one worker; returns the checkpoint with all of them, or what is wrong."""
        here = self.handshake.coordinator
        share, wrong = self.handshake.agree(
            f"lists/{number}",
            info.directory,
            lambda: PartLists(self.store, info).share(here.member, here.members),
        )
        if share is None:
            return None, wrong
        with self.handshake.telling_of(f"read/{number}"):  # For which the others wait next.
            return replace(info, told=PartLists(self.store, info).told_by(self.give(share))), None


def _start(
    incarnation: int, loaded: Loaded, info: CheckpointInfo, skipped: Sequence[str], together: bool
) -> Start:
    held = info if isinstance(info, InMemory) else None
    return Start(incarnation, loaded, info.directory, tuple(skipped), together, held)


def _digest(identity: Mapping[str, Any]) -> str:
    same_everywhere = {key: value for key, value in identity.items() if key != "run_id"}
    return hashlib.sha256(json.dumps(same_everywhere, sort_keys=True).encode()).hexdigest()


def _check_shared(store: Store, incarnation: int, token: str) -> None:
    limit = time.monotonic() + SHARED_WAIT
    pause, longest_pause = store.poll_interval
    while True:
        try:
            seen = incarnations.read_claim(store, incarnation)["token"]
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
