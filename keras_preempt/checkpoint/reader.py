"""Checkpoints found in a directory, verified and read back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from keras_preempt.checkpoint import documents, failpoints
from keras_preempt.checkpoint.assembly import Assembly, Wanted, check_listed, check_room, in_parallel
from keras_preempt.checkpoint.checked_file import CheckedFile
from keras_preempt.checkpoint.commit import read_manifest
from keras_preempt.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpoint,
    NotFound,
    StoreUnavailable,
    UnsafeName,
    UnsupportedFormat,
)
from keras_preempt.checkpoint.exchange import Exchange, Gather
from keras_preempt.checkpoint.layout import (
    MANIFEST,
    attempt_directory,
    is_attempt,
    parse_attempt,
    parse_step,
)
from keras_preempt.checkpoint.manifest import FileEntry, Manifest, Part
from keras_preempt.checkpoint.storage.store import Shown, Store, silent
from keras_preempt.checkpoint.tensors import Array, new_places, read_to_places, verify_file
from keras_preempt.checkpoint.values import check_cover
from keras_preempt.checkpoint.worker_values import WorkerValues

_LOOKS = 10  # at a directory in which others work; each vain one means that they saved and removed meanwhile
_PHASES = ("epoch", "train", "validation", "end")  # in the order in which an epoch passes them


@dataclass(frozen=True)
class CheckpointInfo:
    """A committed checkpoint.

    Attributes:
        step: Training steps done.
        attempt: Name of the attempt that saved it; empty if the folder of the step cannot be looked into.
        directory: The attempt's folder in the store.
        manifest: What it says about itself; None if that cannot be read.
        error: Why it cannot be read; None if it can.
    """

    step: int
    attempt: str
    directory: str
    manifest: Manifest | None
    error: CheckpointError | None = None


@dataclass(frozen=True)
class Loaded:
    """What one worker gets from a checkpoint.

    Attributes:
        manifest: What the checkpoint says about itself.
        values: Its tensors. Of those that are stored in pieces, the boxes that were asked for, or the whole.
        state: The worker's own state.
        substituted_from: The worker whose own tensors and state these are, if the checkpoint lacks this worker's own.
    """

    manifest: Manifest
    values: WorkerValues
    state: dict[str, Any]
    substituted_from: int | None


@dataclass(frozen=True)
class Own:
    """What one worker saved of its own.

    Attributes:
        member: Its number.
        local: Its own tensors, by name.
        state: Its own state.
    """

    member: int
    local: dict[str, Array]
    state: dict[str, Any]


def newest_first(store: Store) -> Iterator[CheckpointInfo]:
    """Finds the committed checkpoints of a directory, the one that is furthest in the training first.

    The order is by step, then by position (one step may be saved before, in and after a validation), then by
    attempt, the latest first. One whose manifest cannot be read comes before the others of its step. What is not asked
    for is not read.

    Raises:
        StoreUnavailable: The storage failed.
    """
    seen: list[tuple[str, str]] | None = None
    for _ in range(_LOOKS):
        steps = {step: folder for folder in store.children("") if (step := parse_step(folder)) is not None}
        any_found, without = False, []
        for step in sorted(steps, reverse=True):
            found, without_manifest = _look(store, step, steps[step])
            yield from sorted(found, key=_progress, reverse=True)
            any_found = any_found or bool(found)
            without += without_manifest
        # A listing takes time. While another process saves and removes, a checkpoint that was seen may be gone, and
        # its successor not seen yet. That must not make a run begin from nothing.
        if any_found or not without or without == seen:
            return
        seen = without
    raise StoreUnavailable(
        f"Expected to list the checkpoints of {store.url}. Received: other ones every time, {_LOOKS} times. Another "
        "job saves and removes them meanwhile; stop it."
    )


def committed(store: Store) -> list[CheckpointInfo]:
    """Returns what `newest_first` finds, which takes several requests for each checkpoint."""
    return list(newest_first(store))


def find(store: Store, directory: str) -> CheckpointInfo | None:
    """Returns the checkpoint in the folder of an attempt, such as "step-00000070/00001-0000"; None if there is none.

    Raises:
        StoreUnavailable: The storage failed.
    """
    folder, _, attempt = directory.partition("/")
    step = parse_step(folder)
    return None if step is None or not is_attempt(attempt) else _info(store, step, attempt)


def load(store: Store, info: CheckpointInfo, member: int, members: int, shown: Shown = silent) -> Loaded:
    """Reads what one worker needs from a checkpoint; see `Reading.load`.

    Args:
        store: The run's directory.
        info: Which checkpoint.
        member: The worker's number.
        members: How many workers there are now.
        shown: Shows how much of it is read.
    """
    if not 0 <= member < members:
        raise ValueError(
            f"Expected a worker numbered from 0 to {members - 1}. Received: {member}. Pass the worker's own "
            "number."
        )
    return Reading(store, info, shown).load(member)


def verify(store: Store, info: CheckpointInfo, shown: Shown = silent) -> None:
    """Reads every byte of a checkpoint, of all workers, and makes sure that it is what was written.

    Raises:
        CorruptCheckpoint: A file is not, or not what a restore would take.
        UnsupportedFormat: It was written in a newer format.
        StoreUnavailable: The storage failed.
    """
    reading = Reading(store, info, shown)
    reading.check_whole()
    entries = [(part, entry) for part in reading.parts() for entry in part.files]
    size = sum(entry.size for _, entry in entries)
    with shown(f"Reading {info.directory}", size) as moved:

        def read(part: Part, entry: FileEntry) -> None:
            check = partial(check_listed, info.directory, part, entry.name)
            verify_file(store, info.directory, entry, moved, check)

        in_parallel([partial(read, *pair) for pair in entries], size)


class Reading:
    """One checkpoint while it is read: each part list is fetched once, and every byte that is used is verified.

    Every method may raise `CorruptCheckpoint` (a file is not what was written), `UnsupportedFormat` (it was written in
    a newer format), `NotEnoughMemory` (it is larger than what this process can have) and `StoreUnavailable`.

    Args:
        store: The run's directory.
        info: Which checkpoint.
        shown: Shows how much of it is read.
        share: The worker's number, and how many workers there are, if it is to read only its share of the mirrored
            tensors; `exchange` then gets the others'. None to read all of them.
        wanted: The boxes that are needed of some tensors, by name. Of these only the files that hold something of a box
            are read, and they do not come as whole tensors.

    Attributes:
        manifest: What the checkpoint says about itself.
    """

    def __init__(
        self,
        store: Store,
        info: CheckpointInfo,
        shown: Shown = silent,
        share: tuple[int, int] | None = None,
        wanted: Wanted | None = None,
    ) -> None:
        if info.manifest is None:
            raise info.error or CorruptCheckpoint(f"{info.directory}/{MANIFEST}", "no readable manifest")
        self.manifest = info.manifest
        self._store = store
        self._directory = info.directory
        self._shown = shown
        self._refs = {ref.member: ref for ref in self.manifest.parts}
        self._parts: dict[int, Part] = {}
        self._share = share
        self._exchange: Exchange | None = None
        self._wanted: Wanted = wanted or {}

    def load(self, member: int) -> Loaded:
        """Reads what one worker needs.

        Returns:
            The tensors and state. If the checkpoint has no part of this worker, those of the lowest one that has
            a part stand in, and `Loaded.substituted_from` says so.
        """
        source = self.source(member)
        values, (own,) = self._read([source])
        substituted_from = None if source == member else source
        return Loaded(self.manifest, replace(values, local=own.local), own.state, substituted_from)

    def load_all(self) -> tuple[WorkerValues, tuple[Own, ...]]:
        """Returns what the workers stored together, and what each that has a part saved of its own, by number."""
        return self._read(sorted(self._refs))

    @property
    def plan(self) -> str:
        """Tells the shares of one checkpoint from those of another: the same for all workers that can `exchange`."""
        return "" if self._exchange is None else self._exchange.plan

    def exchange(self, gather: Gather) -> None:
        """Gets the shares of the others, to where `load` or `load_all` has returned arrays without content.

        All workers have to call it, when all have read their shares, of the same `plan`.

        Raises:
            Exception: What `gather` raises; every other error comes when the exchange is over.
        """
        assert self._exchange is not None
        with self._shown(f"Receiving {self._directory}", self._exchange.arriving) as moved:
            self._exchange.run(gather, moved)

    def source(self, member: int) -> int:
        """Returns the worker whose part is used for `member`."""
        return member if member in self._refs else min(self._refs)

    def part(self, member: int) -> Part:
        """Returns the part list of a worker that has one."""
        if member not in self._parts:
            ref = self._refs[member]
            name = f"{self._directory}/{ref.name}"
            listed = documents.read_listed(
                self._store, name, size=ref.size, crc32c=ref.crc32c, newest=documents.SHARDED_FORMAT
            )
            part = Part.from_document(listed, name)
            if part.member != member:
                raise CorruptCheckpoint(name, f"the part of worker {part.member}")
            if part.position != self.manifest.position:
                raise CorruptCheckpoint(
                    name, f"a part saved at {part.position} instead of {self.manifest.position}"
                )
            if not all(placed.box.flat for placed in part.boxes) and member not in self.manifest.holders:
                raise CorruptCheckpoint(name, "pieces of sharded tensors of a worker that had to write none")
            self._parts[member] = part
        return self._parts[member]

    def parts(self) -> list[Part]:
        """Returns all part lists."""
        return [self.part(member) for member in self._refs]

    def check_whole(self) -> list[Part]:
        """Makes sure that the parts make up every mirrored and sharded tensor once; returns those that have any."""
        writers = [self.part(member) for member in sorted({*self.manifest.writers, *self.manifest.holders})]
        try:
            check_cover(placed.box for part in writers for placed in part.boxes)
        except ValueError as error:
            raise CorruptCheckpoint(
                f"{self._directory}/{MANIFEST}", f"parts that do not fit together: {error}"
            ) from error
        return writers

    def _read(self, members: list[int]) -> tuple[WorkerValues, tuple[Own, ...]]:
        """Reads the mirrored and sharded tensors and what `members` saved of their own, several files at once."""
        failpoints.point("restore.before-read")
        parts = [self.part(member) for member in members]
        whole = self.check_whole()
        assembly = Assembly(self._directory, whole, self._wanted)
        mirrored = assembly.mirrored
        if self._share is not None:
            files = [(entry, assembly.places(entry.name)) for entry in mirrored]
            self._exchange = Exchange(self._directory, files, *self._share)
            mirrored = [entry for entry, _ in self._exchange.own]
        locals_ = [(part.member, entry) for part in parts for entry in part.files if entry.name == part.local]
        own_files = [entry for _, entry in locals_]
        room = sum(entry.size for entry in (*mirrored, *own_files)) + assembly.room
        size = sum(entry.size for entry in (*mirrored, *own_files, *assembly.pieces))
        with self._shown(f"Reading {self._directory}", size) as moved:
            opened = partial(CheckedFile, self._store, self._directory, moved=moved)
            stored = [opened(entry) for entry in (*mirrored, *assembly.pieces)]
            locals_read = [opened(entry) for entry in own_files]
            in_parallel([file.check_size for file in (*stored, *locals_read)], size)
            check_room(self._directory, room if self._exchange is None else room + self._exchange.arriving)
            assembly.allocate()
            reads = [
                *(partial(assembly.read, file) for file in stored),
                *(partial(read_to_places, file, new_places) for file in locals_read),
            ]
            fillings = in_parallel(reads, size)
        if self._exchange is not None:
            self._exchange.hold(fillings[: len(mirrored)])
        own = {
            member: filling.tensors
            for (member, _), filling in zip(locals_, fillings[len(stored) :], strict=True)
        }
        failpoints.point("restore.after-read")
        # Views, since an exchange has yet to fill them.
        values = assembly.values()
        return values, tuple(Own(part.member, own.get(part.member, {}), part.state) for part in parts)


def _look(store: Store, step: int, folder: str) -> tuple[list[CheckpointInfo], list[tuple[str, str]]]:
    """Returns the checkpoints of a step, and its folders of attempts that hold none (any more, or yet)."""
    try:
        attempts = [name for name in store.children(folder) if is_attempt(name)]
    except UnsafeName as error:  # a link that leads out of the directory
        return [CheckpointInfo(step, "", folder, None, error)], []
    infos = {attempt: _info(store, step, attempt) for attempt in attempts}
    found = [info for info in infos.values() if info is not None]
    return found, [(folder, attempt) for attempt in attempts or [""] if infos.get(attempt) is None]


def _info(store: Store, step: int, attempt: str) -> CheckpointInfo | None:
    directory = attempt_directory(step, attempt)
    try:
        manifest = read_manifest(store, directory)
    except NotFound:
        return None
    except (CorruptCheckpoint, UnsupportedFormat, UnsafeName) as error:
        return CheckpointInfo(step, attempt, directory, None, error)
    if (manifest.step, manifest.attempt) != (step, attempt):
        why = f"the manifest of step {manifest.step}, attempt {manifest.attempt}"
        return CheckpointInfo(
            step, attempt, directory, None, CorruptCheckpoint(f"{directory}/{MANIFEST}", why)
        )
    return CheckpointInfo(step, attempt, directory, manifest)


def _progress(info: CheckpointInfo) -> tuple[int, bool, bool, int, int, int, tuple[int, int]]:
    attempt = parse_attempt(info.attempt) if info.attempt else (0, 0)
    if info.manifest is None:
        return info.step, True, False, 0, 0, 0, attempt
    position = info.manifest.position
    phase = position.get("phase")
    rank = _PHASES.index(phase) if phase in _PHASES else -1
    epoch, batch = _whole(position.get("epoch")), _whole(position.get("batch"))
    return info.step, False, phase == "end", epoch, rank, batch, attempt


def _whole(value: object) -> int:
    return value if isinstance(value, int) else -1
