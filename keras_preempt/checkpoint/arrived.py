"""The parts of an attempt that have arrived: read, and checked that they fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import google_crc32c

from keras_preempt.checkpoint import documents
from keras_preempt.checkpoint.attempt import Attempt
from keras_preempt.checkpoint.errors import CommitFailed, NotFound, PositionMismatch, TooLarge
from keras_preempt.checkpoint.layout import part_file
from keras_preempt.checkpoint.manifest import Part, PartRef
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.checkpoint.values import check_cover
from keras_preempt.process.words import some

WORKERS_NAMED = 10
"""How many workers a message names."""


def read_parts(store: Store, directory: str, members: Sequence[int]) -> tuple[list[Part], list[PartRef]]:
    """Reads the part lists of workers; returns them, and how a manifest refers to them."""
    parts, refs = [], []
    for member in members:
        name = part_file(member)
        path = f"{directory}/{name}"
        try:
            data = store.read(path, limit=documents.LARGEST)
        except (NotFound, TooLarge) as error:
            raise CommitFailed(
                f"Expected a readable part list {path}. Received: {error} Nothing was committed."
            ) from error
        part = Part.from_document(documents.decode_document(data, path, documents.SHARDED_FORMAT), path)
        if part.member != member:
            raise CommitFailed(
                f"Expected the part of worker {member} in {path}. Received: that of worker {part.member}. "
                "Nothing was committed; two workers seem to have the same number."
            )
        parts.append(part)
        refs.append(PartRef(member, name, len(data), google_crc32c.value(data)))
    return parts, refs


def check_positions(attempt: Attempt, parts: Sequence[Part]) -> None:
    """Makes sure that all saved at the same position, which is the committer's. Raises `PositionMismatch`."""
    for part in parts:
        if part.position != parts[0].position:
            raise PositionMismatch(
                "Expected all workers to save at the same position. Received: worker "
                f"{parts[0].member} at {parts[0].position}, worker {part.member} at {part.position}. "
                "Nothing was committed; check that all workers run the same program on equally long data."
            )
    if parts[0].position != attempt.position:
        raise PositionMismatch(
            f"Expected the parts at the committer's position {attempt.position}. Received: worker {parts[0].member} "
            f"at {parts[0].position}. Nothing was committed; check that all workers run the same program."
        )


def check_files(attempt: Attempt, parts: Sequence[Part], sizes: Mapping[str, int]) -> None:
    """Makes sure that every listed file is there in its listed size. Raises `CommitFailed`."""
    for part in parts:
        for entry in part.files:
            if sizes.get(entry.name) != entry.size:
                raise CommitFailed(
                    f"Expected {attempt.directory}/{entry.name} with {entry.size} bytes, as worker {part.member} "
                    f"lists it. Received: {sizes.get(entry.name, 'no such file')}. Nothing was committed; check the "
                    "storage."
                )


def check_tensors(attempt: Attempt, parts: Sequence[Part]) -> None:
    """Makes sure that those who had to, and only they, wrote every tensor exactly once. Raises `CommitFailed`."""
    for part in parts:
        if part.member not in attempt.writers and any(placed.box.flat for placed in part.boxes):
            raise CommitFailed(
                f"Expected mirrored tensors only from the writers {some(sorted(attempt.writers), WORKERS_NAMED)} of "
                f"{attempt.directory}. Received: some from worker {part.member}. Nothing was committed; check that "
                "all workers have the same plan."
            )
        wanted = {box for box in attempt.boxes.get(part.member, ()) if not box.flat}
        pieces = {placed.box for placed in part.boxes if not placed.box.flat}
        if pieces != wanted:
            raise CommitFailed(
                f"Expected of worker {part.member} in {attempt.directory} the pieces of sharded tensors that are its "
                f"to write. Received: {len(pieces)} others. Nothing was committed; check that all workers have "
                "the same plan, and number the devices in the same order."
            )
    try:
        check_cover((placed.box for part in parts for placed in part.boxes), attempt.values)
    except ValueError as error:
        raise CommitFailed(
            f"Expected the parts in {attempt.directory} to make up every tensor exactly once. Received: {error}. "
            "Nothing was committed; check that all workers build the same model."
        ) from error
