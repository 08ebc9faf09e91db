"""The commit: the parts of an attempt become a checkpoint when one worker writes the manifest, once and last.

It uses storage alone. The coordination service is no help here, since the worker that hosts it may be the one whose
machine goes away.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from keras_preempt.checkpoint import documents, failpoints, incarnations
from keras_preempt.checkpoint.attempt import Attempt
from keras_preempt.checkpoint.errors import (
    AlreadyExists,
    CommitFailed,
    Fenced,
    NotFound,
    PartsMissing,
    PositionMismatch,
    StoreUnavailable,
)
from keras_preempt.checkpoint.layout import MANIFEST, incarnation_file, part_file
from keras_preempt.checkpoint.manifest import Manifest, Part, PartRef, read_manifest
from keras_preempt.checkpoint.part_lists import read_uncommitted
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.checkpoint.values import check_cover
from keras_preempt.process.words import numbered, some

_SAME_COMMIT = ("step", "attempt", "position")
_SHOWN = 10  # workers that a message names
_SHARED = "Check that all workers share the directory."


@dataclass(frozen=True)
class Patience:
    """How long a commit waits for the parts of an attempt.

    Attributes:
        required: Seconds for the parts that must arrive.
        optional: Seconds for those that may be missing, counted from the same moment.
        gone: Returns the workers that are known to be gone: nobody waits for them.
        clock: Returns monotonic seconds.
        wait: Waits for a number of seconds; may return sooner.
    """

    required: float
    optional: float = 0.0
    gone: Callable[[], Collection[int]] = tuple
    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], object] = time.sleep


def commit(
    store: Store, attempt: Attempt, patience: Patience, now: Callable[[], float] = time.time
) -> Manifest:
    """Waits for the parts of an attempt, checks that they fit together, and writes the manifest.

    Several workers may call this for one attempt: one manifest is stored, and all of them return it. `now` returns
    seconds since 1970.

    Raises:
        CommitFailed: The parts do not fit together, a newer incarnation has removed some, or the directory is no
            longer the one that this start has claimed. `PartsMissing`: a part that must be there did not arrive in
            time, or its worker is gone.
        PositionMismatch: Two workers saved at different positions.
        Fenced: A newer incarnation has claimed the directory. One that claims it in the moment before the manifest
            is created is not noticed: what is committed then is complete, and older than all that the newer
            incarnation commits.
        CorruptCheckpoint: A part list is not what was written.
        StoreUnavailable: The storage failed.
    """
    check_fence(store, attempt.incarnation)
    sizes = wait_for_parts(
        store, attempt.directory, attempt.members, patience, attempt.required, partial(_why_needed, attempt)
    )
    members = range(attempt.members)
    present = [member for member in members if part_file(member) in sizes]
    read = read_uncommitted(store, attempt.directory, present)
    parts, refs = [part for part, _ in read], [ref for _, ref in read]
    _check_positions_and_files(attempt, parts, sizes)
    check_boxes(attempt, parts)
    manifest = Manifest(
        format=documents.SHARDED_FORMAT if attempt.holders else documents.FORMAT,
        step=attempt.step,
        position=dict(attempt.position),
        incarnation=attempt.incarnation,
        attempt=attempt.name,
        kind=attempt.kind,
        finished=attempt.finished,
        reason=attempt.reason,
        members=attempt.members,
        writers=tuple(sorted(set(attempt.writers))),
        parts=tuple(refs),
        missing=tuple(member for member in members if part_file(member) not in sizes),
        created_at=now(),
        versions=dict(attempt.versions),
        holders=attempt.holders,
    )
    failpoints.point("save.before-manifest")
    check_fence(store, attempt.incarnation)
    stored = _store_manifest(store, attempt.directory, manifest)
    failpoints.point("save.after-manifest")
    _check_still_there(store, attempt.directory, parts, refs)
    return stored


def wait_for_commit(
    store: Store,
    directory: str,
    timeout: float,
    *,
    given_up: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
) -> Manifest | None:
    """Waits until another worker has committed an attempt; returns its manifest, None if there is none in time.

    `given_up` says whether waiting is pointless from now on. Raises like `read_manifest`.
    """
    deadline = clock() + timeout
    pause, longest_pause = store.poll_interval
    while True:
        last_look = given_up()  # Asked before the look: it may have been committed just before.
        try:
            return read_manifest(store, directory)
        except NotFound:
            left = deadline - clock()
            if left <= 0 or last_look:
                return None
        wait(min(pause, left))
        pause = min(2 * pause, longest_pause)


def wait_for_parts(
    store: Store,
    directory: str,
    members: int,
    patience: Patience,
    required: Collection[int] | None = None,
    why_needed: Callable[[Sequence[int]], str] = lambda lost: _SHARED,
) -> dict[str, int]:
    """Waits until the part lists of an attempt by so many workers are there, or time is up.

    Args:
        store: The run's directory.
        directory: The attempt's folder.
        members: How many workers there are.
        patience: How long to wait.
        required: The workers whose part must arrive; None for all.
        why_needed: Says why the save fails without some of them.

    Returns:
        The sizes of the attempt's files by plain name.

    Raises:
        PartsMissing: A part that must be there did not arrive in time, or its worker is gone.
    """
    required = range(members) if required is None else required
    begun = patience.clock()
    pause, longest_pause = store.poll_interval
    while True:
        waited = patience.clock() - begun
        dead = frozenset(patience.gone())  # Before the look: what it wrote at last is seen.
        sizes = _sizes(store, directory)
        absent = [member for member in range(members) if part_file(member) not in sizes]
        late = [member for member in absent if member in required]
        awaited = [member for member in absent if member not in dead]
        if not absent or (not late and (not awaited or waited >= patience.optional)):
            return sizes
        if late and (waited >= patience.required or not dead.isdisjoint(late)):
            # Another survivor may have given this attempt up already, and taken its own part away.
            lost = [member for member in late if member in dead] or late
            raise PartsMissing(
                f"Expected the part lists of workers {some(sorted(required), _SHOWN)} in {store.url}/{directory}. "
                f"Received: none of {'worker' if len(late) == 1 else 'workers'} {some(late, _SHOWN)} in time. "
                f"Nothing was committed; the newest earlier checkpoint stays valid. {why_needed(lost)}",
                tuple(lost),
            )
        left = (patience.required if late else patience.optional) - waited
        patience.wait(min(pause, max(left, 0.0)))
        pause = min(2 * pause, longest_pause)


def _why_needed(attempt: Attempt, lost: Sequence[int]) -> str:
    """Says why a save fails without those workers, if they alone hold some of the model."""
    alone = {
        holder
        for value in attempt.values
        for piece in value.pieces or ()
        if set(piece.holders) <= {*lost, *attempt.lost}
        for holder in set(piece.holders).intersection(lost)
    }
    if not alone:
        return _SHARED
    return f"Part of the model was held only by {numbered('worker', alone)}: dead, or too slow to write it."


def _check_positions_and_files(attempt: Attempt, parts: Sequence[Part], sizes: Mapping[str, int]) -> None:
    """Makes sure that all saved at the committer's position, and that every listed file is there in its size."""
    first = parts[0]
    for part in parts:
        if part.position != first.position:
            raise PositionMismatch(
                "Expected all workers to save at the same position. Received: worker "
                f"{first.member} at {first.position}, worker {part.member} at {part.position}. "
                "Nothing was committed; check that all workers run the same program on equally long data."
            )
    if first.position != attempt.position:
        raise PositionMismatch(
            f"Expected the parts at the committer's position {attempt.position}. Received: worker {first.member} "
            f"at {first.position}. Nothing was committed; check that all workers run the same program."
        )
    for part in parts:
        for entry in part.files:
            if sizes.get(entry.name) != entry.size:
                raise CommitFailed(
                    f"Expected {attempt.directory}/{entry.name} with {entry.size} bytes, as worker {part.member} "
                    f"lists it. Received: {sizes.get(entry.name, 'no such file')}. Nothing was committed; check the "
                    "storage."
                )


def check_boxes(attempt: Attempt, parts: Sequence[Part]) -> None:
    """Makes sure that those who had to, and only they, wrote every value exactly once. Raises `CommitFailed`."""
    writers = frozenset(attempt.writers)
    for part in parts:
        if part.member not in writers and any(placed.box.flat for placed in part.boxes):
            raise CommitFailed(
                f"Expected mirrored tensors only from the writers {some(sorted(attempt.writers), _SHOWN)} of "
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


def check_fence(store: Store, incarnation: int) -> None:
    """Makes sure that the directory is still this start's.

    Raises `Fenced` if a newer incarnation has claimed it, and `CommitFailed` if it is no longer the one that this start
    has claimed.
    """
    newest = incarnations.latest(store)
    if newest > incarnation:
        raise Fenced(incarnation, newest, store.url)
    if newest < incarnation:
        # The next start will not look where this one writes now, or cannot tell whose files they are.
        raise CommitFailed(
            f"Expected {incarnation_file(incarnation)}, the claim of this start, in {store.url}. Received: none. The "
            "directory was removed, emptied or unmounted. Nothing was committed; put it back as it was."
        )


def _check_still_there(store: Store, directory: str, parts: Sequence[Part], refs: Sequence[PartRef]) -> None:
    """Takes the manifest back if a newer start began to remove the attempt before the manifest was there.

    No storage looks at the fence and creates the manifest in one operation. If the committer is held up in between,
    for as long as it takes a newer incarnation to save and to tidy up, its attempt counts as abandoned.
    """
    listed = {ref.name: ref.size for ref in refs}
    listed.update((entry.name, entry.size) for part in parts for entry in part.files)
    try:
        sizes = _sizes(store, directory)
    except StoreUnavailable:
        return  # The manifest is stored, so this is a checkpoint unless both have happened.
    gone = sorted(name for name, size in listed.items() if sizes.get(name) != size)
    if not gone:
        return
    with contextlib.suppress(NotFound):
        store.delete(f"{directory}/{MANIFEST}")
    raise CommitFailed(
        f"Expected the parts in {store.url}/{directory} to stay until they are committed. Received: {gone[0]} is "
        "gone. Nothing was committed; a newer start of this job took it for dead. Stop this one."
    )


def _sizes(store: Store, directory: str) -> dict[str, int]:
    """Returns the sizes of an attempt's files by plain name."""
    return {info.name[len(directory) + 1 :]: info.size for info in store.list(directory)}


def _store_manifest(store: Store, directory: str, manifest: Manifest) -> Manifest:
    try:
        store.create(f"{directory}/{MANIFEST}", manifest.to_json())
    except AlreadyExists:
        # Another worker has committed this attempt; it may have waited longer for the optional ones.
        stored = read_manifest(store, directory)
        if any(getattr(stored, field) != getattr(manifest, field) for field in _SAME_COMMIT):
            raise CommitFailed(
                f"Expected {directory}/{MANIFEST} to be absent or the same commit by another worker. "
                f"Received: one of step {stored.step} at {stored.position}. It was left unchanged."
            ) from None
        return stored
    return manifest
