"""The part lists of a checkpoint: read several at a time, each once, and verified."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial

import google_crc32c

from keras_preempt.checkpoint import documents
from keras_preempt.checkpoint.errors import CommitFailed, CorruptCheckpoint, NotFound, TooLarge
from keras_preempt.checkpoint.finding import CheckpointInfo
from keras_preempt.checkpoint.layout import MANIFEST, part_file
from keras_preempt.checkpoint.manifest import Part, PartRef
from keras_preempt.checkpoint.storage.parallel import in_parallel
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.checkpoint.values import check_cover


class PartLists:
    """The part lists of a committed checkpoint, which its manifest binds.

    Several workers can read them together, so that each is read once: every worker reads those that `share` returns,
    and gets the others from the workers that have read them.

    Args:
        store: The run's directory.
        info: Which checkpoint; those of its lists that others have read are verified here, too.

    Everything may raise `CorruptCheckpoint`, `UnsupportedFormat` and `StoreUnavailable`.
    """

    def __init__(self, store: Store, info: CheckpointInfo) -> None:
        self._store = store
        self._directory = info.directory
        self._manifest = info.readable()
        self._told = info.told
        self._parts: dict[int, Part] = {}
        self.refs = {ref.member: ref for ref in self._manifest.parts}

    def of(self, members: Collection[int]) -> list[Part]:
        """Returns the parts of workers that have one, in this order."""
        new = [member for member in members if member not in self._parts]
        told = {member: self._told[member] for member in new if member in self._told}
        data = {**told, **self._read([member for member in new if member not in told])}
        for member in new:
            self._parts[member] = self._part(member, data[member])
        return [self._parts[member] for member in members]

    def check_whole(self) -> list[Part]:
        """Makes sure that the parts make up every value exactly once; returns those that hold any."""
        writers = self.of(sorted({*self._manifest.writers, *self._manifest.holders}))
        try:
            check_cover(placed.box for part in writers for placed in part.boxes)
        except ValueError as error:
            raise CorruptCheckpoint(
                f"{self._directory}/{MANIFEST}", f"parts that do not fit together: {error}"
            ) from error
        return writers

    def share(self, worker: int, workers: int) -> bytes:
        """Reads what one of so many workers is to read; returns the part lists one after the other."""
        members = self._shared_out(worker, workers)
        return b"".join(self._read(members).values())

    def told_by(self, shares: Sequence[bytes]) -> dict[int, bytes]:
        """Returns the part lists by member, given what `share` has returned on each worker."""
        told = {}
        for worker, share in enumerate(shares):
            start = 0
            for member in self._shared_out(worker, len(shares)):
                stop = start + self.refs[member].size
                told[member] = share[start:stop]
                start = stop
        return told

    def _shared_out(self, worker: int, workers: int) -> list[int]:
        return list(self.refs)[worker::workers]

    def _read(self, members: Iterable[int]) -> dict[int, bytes]:
        members = list(members)
        read = in_parallel(self._store, [partial(self._read_one, member) for member in members])
        return dict(zip(members, read, strict=True))

    def _read_one(self, member: int) -> bytes:
        ref, name = self.refs[member], self._name(member)
        if ref.size > documents.LARGEST:
            why = f"a listed size of {ref.size} bytes, more than a document may have"
            raise CorruptCheckpoint(name, why)
        try:
            data = self._store.read(name, limit=ref.size)
        except NotFound as error:
            raise CorruptCheckpoint(name, "no file of that name") from error
        except TooLarge as error:
            raise CorruptCheckpoint(name, f"{error.size} bytes instead of {ref.size}") from error
        if len(data) != ref.size:  # So that what follows it in a share is found.
            raise CorruptCheckpoint(name, f"{len(data)} bytes instead of {ref.size}")
        return data

    def _part(self, member: int, data: bytes) -> Part:
        ref, name = self.refs[member], self._name(member)
        if len(data) != ref.size:
            raise CorruptCheckpoint(name, f"{len(data)} bytes instead of {ref.size}")
        if google_crc32c.value(data) != ref.crc32c:
            raise CorruptCheckpoint(name, "another crc32c than when it was written")
        part = _decoded(data, name)
        if part.member != member:
            raise CorruptCheckpoint(name, f"the part of worker {part.member}")
        if part.position != self._manifest.position:
            raise CorruptCheckpoint(
                name, f"a part saved at {part.position} instead of {self._manifest.position}"
            )
        if not all(placed.box.flat for placed in part.boxes) and member not in self._manifest.holders:
            raise CorruptCheckpoint(name, "pieces of sharded tensors of a worker that had to write none")
        return part

    def _name(self, member: int) -> str:
        return f"{self._directory}/{self.refs[member].name}"


def read_uncommitted(store: Store, directory: str, members: Sequence[int]) -> list[tuple[Part, PartRef]]:
    """Reads the part lists of workers before there is a manifest; returns each with how a manifest refers to it.

    Raises `CommitFailed`, `CorruptCheckpoint`, `UnsupportedFormat` and `StoreUnavailable`.
    """

    def read(member: int) -> bytes:
        path = f"{directory}/{part_file(member)}"
        try:
            return store.read(path, limit=documents.LARGEST)
        except (NotFound, TooLarge) as error:
            raise CommitFailed(
                f"Expected a readable part list {path}. Received: {error} Nothing was committed."
            ) from error

    found = []
    for member, data in zip(
        members, in_parallel(store, [partial(read, member) for member in members]), strict=True
    ):
        name = part_file(member)
        part = _decoded(data, f"{directory}/{name}")
        if part.member != member:
            raise CommitFailed(
                f"Expected the part of worker {member} in {directory}/{name}. Received: that of worker {part.member}. "
                "Nothing was committed; two workers seem to have the same number."
            )
        found.append((part, PartRef(member, name, len(data), google_crc32c.value(data))))
    return found


def _decoded(data: bytes, name: str) -> Part:
    return Part.from_document(documents.decode_document(data, name, documents.SHARDED_FORMAT), name)
