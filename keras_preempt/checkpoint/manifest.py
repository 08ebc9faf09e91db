"""The description of a checkpoint: a part list for each worker, and the manifest that binds them.

A checkpoint whose values are all held by all workers is described in format 1. If some are divided among workers, the
manifest and the part lists that name pieces of them are in format 2, which has one more field each: `holders` and
`sharded`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from keras_preempt.checkpoint import documents
from keras_preempt.checkpoint.documents import SHARDED_FORMAT, of_file
from keras_preempt.checkpoint.errors import CorruptCheckpoint
from keras_preempt.checkpoint.layout import MANIFEST, parse_attempt, part_file
from keras_preempt.checkpoint.storage.store import Store, check_name
from keras_preempt.checkpoint.values import Box
from keras_preempt.process.json_fields import Fields

Made = TypeVar("Made")

_LARGEST_SUM = 2**32 - 1
_MOST_MEMBERS = 10**9
_LONGEST_SMALL = 10_000  # characters in JSON of a field that is only shown; all manifests are read at a start


@dataclass(frozen=True)
class FileEntry:
    """A file of an attempt, as it was written: its plain name, its size in bytes, and the sum over all of them."""

    name: str
    size: int
    crc32c: int

    def __post_init__(self) -> None:
        if "/" in check_name(self.name):
            raise ValueError(f"{self.name!r:.200} is not the plain name of a file")


@dataclass(frozen=True)
class Placed:
    """A box, and the name of the file that holds it under the key `box.key`."""

    file: str
    box: Box

    def to_json(self) -> dict[str, Any]:
        fields = {"file": self.file, **asdict(self.box)}
        if fields.pop("flat"):
            fields.update(start=self.box.start[0], stop=self.box.stop[0])
        return fields

    @classmethod
    def from_fields(cls, fields: Fields, *, flat: bool) -> Placed:
        start, stop = ((fields.integer(end),) if flat else fields.integers(end) for end in ("start", "stop"))
        tensor, dtype, shape = fields.text("tensor"), fields.text("dtype"), fields.integers("shape")
        return cls(fields.text("file"), Box(tensor, dtype, shape, start, stop, flat))


@dataclass(frozen=True)
class Part:
    """What one worker has written for one attempt.

    Attributes:
        member: The worker's number.
        files: Its files of tensors.
        boxes: Where its share of the tensors lies that are stored together; empty for a worker that wrote none.
        local: Name of the file with its own tensors; None if it has none.
        state: JSON: input position, random state, state of callbacks.
        position: Where in the training it saved, such as ``{"epoch": 1, "phase": "train", "batch": 7}``.
    """

    member: int
    files: tuple[FileEntry, ...]
    boxes: tuple[Placed, ...]
    local: str | None
    state: dict[str, Any]
    position: dict[str, Any]

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.files]
        runs = {placed.file for placed in self.boxes if placed.box.flat}
        pieces = {placed.file for placed in self.boxes if not placed.box.flat}
        if len(set(names)) != len(names):
            raise ValueError("a file is listed twice")
        if not (runs | pieces | ({self.local} - {None})) <= set(names) or self.local in runs | pieces:
            raise ValueError("a tensor lies in a file that is not listed, or in the one of local tensors")
        if runs & pieces:
            raise ValueError("a file holds both pieces of sharded tensors and others")
        # Checked before memory is taken for the tensors that a list claims.
        room = {entry.name: entry.size for entry in self.files}
        for placed in self.boxes:
            room[placed.file] -= placed.box.nbytes
        if min(room.values(), default=0) < 0:
            raise ValueError("a file is smaller than the tensors in it")

    def to_json(self) -> bytes:
        sharded = [placed.to_json() for placed in self.boxes if not placed.box.flat]
        body = {
            "format": SHARDED_FORMAT if sharded else documents.FORMAT,
            "member": self.member,
            "files": [asdict(entry) for entry in self.files],
            "mirrored": [placed.to_json() for placed in self.boxes if placed.box.flat],
            "local": self.local,
            "state": self.state,
            "position": self.position,
        }
        if sharded:
            body["sharded"] = sharded
        return documents.encode_document(body)

    @classmethod
    def from_document(cls, document: dict[str, Any], file: str) -> Part:
        """Returns the part that a document describes, as `documents.decode_document` gives it.

        Raises `CorruptCheckpoint` if a field is missing, unknown, of another type, or contradicts another.
        """
        fields = of_file(document, file)
        kinds = {"mirrored": True}
        if fields.integer("format", minimum=1) >= SHARDED_FORMAT:
            kinds["sharded"] = False
        try:
            boxes = [
                placed
                for kind, flat in kinds.items()
                for placed in _each(fields, kind, partial(Placed.from_fields, flat=flat))
            ]
            part = cls(
                member=fields.integer("member", maximum=_MOST_MEMBERS),
                files=_each(fields, "files", lambda e: FileEntry(e.text("name"), *_size_and_sum(e))),
                boxes=tuple(boxes),
                local=None if fields.null("local") else fields.text("local"),
                state=fields.mapping("state"),
                position=fields.mapping("position", longest=_LONGEST_SMALL),
            )
        except ValueError as error:
            raise CorruptCheckpoint(file, f"contradictory fields: {error}") from error
        fields.end()
        return part


@dataclass(frozen=True)
class PartRef:
    """A part list that belongs to a checkpoint: the worker's number, and the file as in `FileEntry`."""

    member: int
    name: str
    size: int
    crc32c: int

    def __post_init__(self) -> None:
        if self.name != part_file(self.member):
            raise ValueError(f"the part list of worker {self.member} is named {self.name!r:.200}")


@dataclass(frozen=True)
class Manifest:
    """A checkpoint.

    Attributes:
        format: Version of the format.
        step: Training steps done.
        position: Where in the training it was saved; the same for every worker.
        incarnation: Number of the start of the job that saved it.
        attempt: Name of the attempt, see `layout.attempt_name`.
        kind: Why the round was called, such as 'preemption' or 'finished'.
        finished: Whether the training was over.
        reason: The same for people.
        members: How many workers there were.
        writers: The workers that wrote the mirrored tensors.
        parts: The part lists, by member.
        missing: Workers whose part did not arrive; their own tensors and state are lost.
        created_at: Seconds since the epoch.
        versions: Versions of the software that saved it, by name.
        holders: The workers that wrote the pieces of sharded tensors; none in format 1.
    """

    format: int
    step: int
    position: dict[str, Any]
    incarnation: int
    attempt: str
    kind: str
    finished: bool
    reason: str
    members: int
    writers: tuple[int, ...]
    parts: tuple[PartRef, ...]
    missing: tuple[int, ...]
    created_at: float
    versions: dict[str, Any]
    holders: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        present = [part.member for part in self.parts]
        if parse_attempt(self.attempt)[0] != self.incarnation:
            raise ValueError(f"attempt {self.attempt} is not one of incarnation {self.incarnation}")
        if sorted(set(present)) != present or sorted(set(self.missing)) != list(self.missing):
            raise ValueError("members are repeated or not in order")
        both = sorted([*present, *self.missing])
        # The count first, since the number of members could be anything.
        if len(both) != self.members or both != list(range(self.members)):
            raise ValueError(f"parts and missing ones do not make up {self.members} members")
        writers = set(self.writers)
        if not writers or sorted(writers) != list(self.writers) or not writers <= set(present):
            raise ValueError("writers are none, repeated, not in order or without a part")
        holders = set(self.holders)
        if sorted(holders) != list(self.holders) or not holders <= set(present):
            raise ValueError("holders are repeated, not in order or without a part")
        if holders and self.format < SHARDED_FORMAT:
            raise ValueError(f"holders in format {self.format}, which has no sharded tensors")

    def to_json(self) -> bytes:
        body = asdict(self)
        if self.format < SHARDED_FORMAT:
            del body["holders"]
        return documents.encode_document(body)

    @classmethod
    def from_document(cls, document: dict[str, Any], file: str) -> Manifest:
        fields = of_file(document, file)
        version = fields.integer("format", minimum=1)
        with_boxes = version >= SHARDED_FORMAT

        def part_ref(entry: Fields) -> PartRef:
            member = entry.integer("member", maximum=_MOST_MEMBERS)
            return PartRef(member, entry.text("name"), *_size_and_sum(entry))

        try:
            manifest = cls(
                format=version,
                step=fields.integer("step", maximum=10**17),
                position=fields.mapping("position", longest=_LONGEST_SMALL),
                incarnation=fields.integer("incarnation"),
                attempt=fields.text("attempt"),
                kind=fields.text("kind"),
                finished=fields.boolean("finished"),
                reason=fields.text("reason"),
                members=fields.integer("members", minimum=1, maximum=_MOST_MEMBERS),
                writers=fields.integers("writers", maximum=_MOST_MEMBERS),
                parts=_each(fields, "parts", part_ref),
                missing=fields.integers("missing", maximum=_MOST_MEMBERS),
                created_at=fields.number("created_at"),
                versions=fields.mapping("versions", longest=_LONGEST_SMALL),
                holders=fields.integers("holders", maximum=_MOST_MEMBERS) if with_boxes else (),
            )
        except ValueError as error:
            raise CorruptCheckpoint(file, f"contradictory fields: {error}") from error
        fields.end()
        return manifest


def read_manifest(store: Store, directory: str) -> Manifest:
    """Returns the manifest of an attempt; raises `NotFound` if it was not committed, or like `read_document`."""
    name = f"{directory}/{MANIFEST}"
    return Manifest.from_document(documents.read_document(store, name, SHARDED_FORMAT), name)


def _each(fields: Fields, key: str, make: Callable[[Fields], Made]) -> tuple[Made, ...]:
    made = []
    for entry in fields.objects(key):
        made.append(make(entry))
        entry.end()
    return tuple(made)


def _size_and_sum(entry: Fields) -> tuple[int, int]:
    return entry.integer("size"), entry.integer("crc32c", maximum=_LARGEST_SUM)
