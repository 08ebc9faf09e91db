"""A checkpoint read back: every byte that is used is verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from keras_preempt.checkpoint import failpoints
from keras_preempt.checkpoint.assembly import Assembly, Wanted, check_room, check_stored
from keras_preempt.checkpoint.checked_file import CheckedFile
from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.exchange import Exchange, Gather, share_out
from keras_preempt.checkpoint.finding import CheckpointInfo
from keras_preempt.checkpoint.manifest import FileEntry, Manifest, Part
from keras_preempt.checkpoint.part_lists import PartLists
from keras_preempt.checkpoint.setup import SETUP, Setup
from keras_preempt.checkpoint.storage.parallel import in_parallel
from keras_preempt.checkpoint.storage.store import Shown, Store, silent
from keras_preempt.checkpoint.tensors import Array, Filling, Places, new_places, read_to_places, verify_file
from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.process.words import counted


@dataclass(frozen=True)
class WorkerState:
    """What one worker saved of its own: its values, by name, and its JSON state."""

    member: int
    local: dict[str, Array]
    state: dict[str, Any]


@dataclass(frozen=True)
class Loaded:
    """What one worker gets from a checkpoint.

    Attributes:
        manifest: What the checkpoint says about itself.
        values: The values; of those that are divided among workers, the boxes that were asked for, or the whole.
        state: The worker's own state.
        substituted_from: The worker whose own values and state these are, if the checkpoint lacks this worker's own.
        saved_on: The set-up that it was saved on, if that is another one than this worker's: its part is then to be
            made from those of all workers.
        workers: These parts, by number; empty if the set-up is the same.
    """

    manifest: Manifest
    values: WorkerValues
    state: dict[str, Any]
    substituted_from: int | None = None
    saved_on: Setup | None = None
    workers: tuple[WorkerState, ...] = ()


def load(store: Store, info: CheckpointInfo, member: int, members: int, shown: Shown = silent) -> Loaded:
    """Reads what one of `members` workers needs from a checkpoint; see `Reading.load`."""
    if not 0 <= member < members:
        raise ValueError(
            f"Expected a worker numbered from 0 to {members - 1}. Received: {member}. Pass the worker's own "
            "number."
        )
    return Reading(store, info, shown).load(member)


def verify(store: Store, info: CheckpointInfo, shown: Shown = silent) -> None:
    """Reads every byte of a checkpoint, of all workers, and makes sure that it is what was written.

    Raises like `Reading`, and takes no memory for the tensors.
    """
    lists = Reading(store, info, shown).part_lists
    lists.check_whole()
    parts = lists.of(list(lists.refs))
    entries = [(part, entry) for part in parts for entry in part.files]
    size = sum(entry.size for _, entry in entries)
    with shown(f"Reading {info.directory}", size) as moved:

        def read(part: Part, entry: FileEntry) -> None:
            boxes = [placed.box for placed in part.boxes if placed.file == entry.name]
            check = partial(check_stored, f"{info.directory}/{entry.name}", boxes)
            # The list names none of a worker's own values.
            own = entry.name == part.local
            verify_file(store, info.directory, entry, moved, (lambda stored: None) if own else check)

        in_parallel(store, [partial(read, *pair) for pair in entries], size)


class Reading:
    """One checkpoint while it is read: each part list is fetched once, and every byte that is used is verified.

    Every method may raise `CorruptCheckpoint` (a file is not what was written), `UnsupportedFormat` (it was written in
    a newer format), `NotEnoughMemory` (it is larger than what this process can have) and `StoreUnavailable`.

    Args:
        store: The run's directory.
        info: Which checkpoint.
        shown: Shows how much of it is read.
        share: The worker's number, and how many workers there are, if it is to read only its share of what all workers
            hold; `exchange` then gets the others'. None to read all of it.
        givers: Which worker reads the files of each part, if only some can. None: they are shared out evenly.
        wanted: The boxes that are needed of some values, by name. Of these only the files that hold something of a box
            are read, and they do not come whole.
    """

    def __init__(
        self,
        store: Store,
        info: CheckpointInfo,
        shown: Shown = silent,
        share: tuple[int, int] | None = None,
        wanted: Wanted | None = None,
        givers: Mapping[int, int] | None = None,
    ) -> None:
        self.manifest = info.readable()
        self._store = store
        self._directory = info.directory
        self._shown = shown
        self.part_lists = PartLists(store, info)
        self._share = share
        self._givers = givers
        self._exchange: Exchange | None = None
        self._wanted: Wanted = wanted or {}

    def load(self, member: int, setup: Setup | None = None) -> Loaded:
        """Reads what one worker needs: its own part, or that of the lowest one if the checkpoint has none of it.

        Args:
            member: The worker's number.
            setup: What it trains on. If others saved the checkpoint, it gets the parts of all of them; None: its own
                part in any case.

        Raises:
            CheckpointError: As said above; or others saved it, and it does not say what they trained on.
        """
        source = member if member in self.part_lists.refs else min(self.part_lists.refs)
        saved_on = None if setup is None else self.part_lists.of([source])[0].state.get(SETUP)
        members = self.manifest.members
        same = setup is None or saved_on == setup.to_json() or (saved_on is None and members == setup.workers)
        if setup is not None and not same and saved_on is None:
            raise CheckpointError(
                "Expected a checkpoint that says what it was trained on, to continue it on "
                f"{counted(setup.workers, 'worker')}. Received: {self._directory}, which does not. "
                f"Start {counted(members, 'worker')}."
            )
        values, workers = self._read([source]) if same else self.load_all()
        own = next(each for each in workers if each.member == source)
        return Loaded(
            self.manifest,
            replace(values, local=own.local),
            own.state,
            None if source == member else source,
            None if same else Setup.from_json(saved_on, self._directory),
            () if same else workers,
        )

    def load_all(self) -> tuple[WorkerValues, tuple[WorkerState, ...]]:
        """Returns what the workers stored together, and what each that has a part saved of its own, by number."""
        return self._read(sorted(self.part_lists.refs))

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

    def _shares(
        self, entries: Sequence[FileEntry], parts: Sequence[Part], workers: int
    ) -> Sequence[Sequence[int]]:
        """Returns which of these files each worker reads, by their places."""
        if self._givers is None:
            return share_out([entry.size for entry in entries], workers)
        giver = {entry.name: self._givers[part.member] for part in parts for entry in part.files}
        return [
            [place for place, entry in enumerate(entries) if giver[entry.name] == worker]
            for worker in range(workers)
        ]

    def _read(self, members: list[int]) -> tuple[WorkerValues, tuple[WorkerState, ...]]:
        """Reads what workers stored together, and what `members` saved of their own, several files at once."""
        failpoints.point("restore.before-read")
        whole = self.part_lists.check_whole()
        parts = self.part_lists.of(members)
        assembly = Assembly(self._directory, whole, self._wanted)
        mirrored = assembly.mirrored
        if self._share is not None:
            files = [(entry, partial(assembly.places, entry.name)) for entry in mirrored]
            member, workers = self._share
            self._exchange = Exchange(self._directory, files, member, self._shares(mirrored, whole, workers))
            mirrored = [entry for entry, _ in self._exchange.own]
        locals_ = [(part.member, entry) for part in parts for entry in part.files if entry.name == part.local]
        own_files = [entry for _, entry in locals_]
        room = sum(entry.size for entry in (*mirrored, *own_files)) + assembly.room
        size = sum(entry.size for entry in (*mirrored, *own_files, *assembly.pieces))
        with self._shown(f"Reading {self._directory}", size) as moved:
            opened = partial(CheckedFile, self._store, self._directory, moved=moved)
            to_places: list[tuple[CheckedFile, Places]]
            to_places = [(opened(entry), partial(assembly.places, entry.name)) for entry in mirrored]
            to_places += [(opened(entry), new_places) for entry in own_files]
            pieces = [opened(entry) for entry in assembly.pieces]
            in_parallel(
                self._store, [file.check_size for file in (*(file for file, _ in to_places), *pieces)]
            )
            check_room(self._directory, room if self._exchange is None else room + self._exchange.arriving)
            assembly.allocate()
            reads: list[Callable[[], Filling | None]] = [
                *(partial(read_to_places, *pair) for pair in to_places),
                *(partial(assembly.read_pieces, file) for file in pieces),
            ]
            fillings = [filling for filling in in_parallel(self._store, reads, size) if filling is not None]
        if self._exchange is not None:
            self._exchange.hold(fillings[: len(mirrored)])
        own = {
            member: filling.tensors
            for (member, _), filling in zip(locals_, fillings[len(mirrored) :], strict=True)
        }
        failpoints.point("restore.after-read")
        # Views, since an exchange has yet to fill them.
        values = assembly.values()
        return values, tuple(WorkerState(part.member, own.get(part.member, {}), part.state) for part in parts)
