"""How the parts of an attempt become a checkpoint: one committer writes the manifest, once, last.

It goes through storage alone. The coordination service is no use here, since the worker that hosts it may be
the one that is being taken away.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from keras_preempt.checkpoint import documents, failpoints, incarnations
from keras_preempt.checkpoint.errors import (
    AlreadyExists,
    CommitFailed,
    Fenced,
    NotFound,
    PartsMissing,
    StoreUnavailable,
)
from keras_preempt.checkpoint.layout import MANIFEST, attempt_directory, incarnation_file, part_file
from keras_preempt.checkpoint.manifest import FORMAT, Manifest, Part, PartRef
from keras_preempt.checkpoint.part_checks import check_files, check_positions, check_slices, read_parts, some
from keras_preempt.checkpoint.partition import TensorSpec
from keras_preempt.checkpoint.storage.store import Store

_SAME_COMMIT = ("step", "attempt", "position")


def commit(
    store: Store,
    directory: str,
    *,
    expected: Sequence[int],
    writers: Sequence[int],
    optional: Sequence[int] = (),
    timeout: float,
    optional_timeout: float,
    incarnation: int,
    step: int,
    position: Mapping[str, Any],
    attempt: str,
    kind: str,
    finished: bool,
    reason: str,
    versions: Mapping[str, Any],
    specs: Sequence[TensorSpec] | None = None,
    gone: Callable[[], Collection[int]] = tuple,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
    now: Callable[[], float] = time.time,
) -> Manifest:
    """Waits for the parts of an attempt, checks that they fit together, and writes the manifest.

    May be called by several workers for one attempt: one manifest comes of it, and all of them return it.

    Args:
        store: the run's directory.
        directory: the attempt's folder.
        expected: all workers of the job, numbered from 0.
        writers: those that write the mirrored tensors; all of them must arrive.
        optional: those that may not arrive, since they are being taken away; a writer among them is not
            optional.
        timeout: seconds to wait for the parts that must arrive.
        optional_timeout: seconds to wait for the optional ones, counted from the same moment.
        incarnation: the committer's own.
        step: see `Manifest`, as are `position`, `attempt`, `kind`, `finished`, `reason` and `versions`.
        position: see `Manifest`.
        attempt: see `Manifest`.
        kind: see `Manifest`.
        finished: see `Manifest`.
        reason: see `Manifest`.
        versions: see `Manifest`.
        specs: the mirrored tensors that there must be; None to check only that those which are there are
            complete.
        gone: returns the workers that are known to be gone: nobody waits for them.
        clock: monotonic seconds.
        wait: waits for a number of seconds; may return sooner.
        now: seconds since the epoch.

    Returns:
        The manifest that is stored.

    Raises:
        CommitFailed: the parts do not fit together, a newer incarnation has removed some, or the directory is not the
            one any more that this start has claimed. `PartsMissing`: a part that must be there did not arrive in time,
            or its worker is gone.
        PositionMismatch: two workers saved at different positions.
        Fenced: a newer incarnation has claimed the directory. One that claims it in the moment before the manifest
            is created is not noticed: what is committed then is complete, and older than all that the newer
            incarnation commits.
        CorruptCheckpoint: a part list is not what was written.
        StoreUnavailable: the storage failed.
    """
    members = sorted(set(expected))
    if members != list(range(len(members))) or not writers or not {*writers, *optional} <= set(members):
        raise ValueError(
            "Expected workers numbered from 0, at least one writer, and writers and optional ones among "
            "them. "
            f"Received: {members}, writers {list(writers)}, optional {list(optional)}. Correct the plan."
        )
    if directory != attempt_directory(step, attempt):
        raise ValueError(
            f"Expected the folder {attempt_directory(step, attempt)}. Received: {directory}. "
            "Make it with attempt_directory."
        )
    position, versions = documents.as_read(dict(position)), documents.as_read(dict(versions))
    check_fence(store, incarnation)
    required = set(members) - (set(optional) - set(writers))
    begun = clock()
    sizes = _wait_for_parts(
        store, directory, members, required, begun + timeout, begun + optional_timeout, gone, clock, wait
    )
    present = [member for member in members if part_file(member) in sizes]
    parts, refs = read_parts(store, directory, present)
    check_positions(parts, position)
    check_files(directory, parts, sizes)
    check_slices(directory, parts, writers, specs)
    manifest = Manifest(
        format=FORMAT,
        step=step,
        position=position,
        incarnation=incarnation,
        attempt=attempt,
        kind=kind,
        finished=finished,
        reason=reason,
        members=len(members),
        writers=tuple(sorted(set(writers))),
        parts=tuple(refs),
        missing=tuple(member for member in members if member not in present),
        created_at=now(),
        versions=versions,
    )
    failpoints.point("save.before-manifest")
    check_fence(store, incarnation)
    stored = _store_manifest(store, directory, manifest)
    failpoints.point("save.after-manifest")
    _check_still_there(store, directory, parts, refs)
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
    """Waits until another worker has committed an attempt.

    Args:
        store: the run's directory.
        directory: the attempt's folder.
        timeout: seconds to wait.
        given_up: whether there is no use in waiting any longer.
        clock: monotonic seconds.
        wait: waits for a number of seconds; may return sooner.

    Returns:
        The manifest, None if there is none in time.

    Raises:
        CorruptCheckpoint: the manifest is not what was written.
        StoreUnavailable: the storage failed.
    """
    deadline = clock() + timeout
    pause, longest_pause = store.look_again
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


def read_manifest(store: Store, directory: str) -> Manifest:
    """Returns the manifest of an attempt.

    Raises:
        NotFound: the attempt was not committed.
        UnsupportedFormat: it was written in a newer format.
        CorruptCheckpoint: it is not what was written.
    """
    name = f"{directory}/{MANIFEST}"
    return Manifest.from_document(documents.read(store, name), name)


def _wait_for_parts(
    store: Store,
    directory: str,
    members: Collection[int],
    required: Collection[int],
    deadline: float,
    optional_deadline: float,
    gone: Callable[[], Collection[int]],
    clock: Callable[[], float],
    wait: Callable[[float], object],
) -> dict[str, int]:
    """Returns the sizes of the attempt's files by plain name, once the part lists are there or time is up."""
    pause, longest_pause = store.look_again
    while True:
        time_now = clock()
        dead = frozenset(gone())  # Before the look: what it wrote at last is seen.
        sizes = _sizes(store, directory)
        absent = [member for member in members if part_file(member) not in sizes]
        late = [member for member in absent if member in required]
        awaited = [member for member in absent if member not in dead]
        if not absent or (not late and (not awaited or time_now >= optional_deadline)):
            return sizes
        if late and (time_now >= deadline or not dead.isdisjoint(late)):
            raise PartsMissing(
                f"Expected the part lists of workers {some(sorted(required))} in {store.url}/{directory}. "
                f"Received: none of {'worker' if len(late) == 1 else 'workers'} {some(late)} in time. "
                "Nothing was committed; the newest earlier checkpoint stays valid. Check that all workers "
                "share the directory.",
                tuple(late),
            )
        until = deadline if late else optional_deadline
        wait(min(pause, max(until - time_now, 0.0)))
        pause = min(2 * pause, longest_pause)


def check_fence(store: Store, incarnation: int) -> None:
    """Makes sure that the directory is still this start's.

    Raises:
        Fenced: a newer incarnation has claimed it.
        CommitFailed: it is not the one any more that this start has claimed.
        StoreUnavailable: the storage failed.
    """
    newest = incarnations.latest(store)
    if newest > incarnation:
        raise Fenced(incarnation, newest, store.url)
    if newest < incarnation:
        # What is written now is not where the next start will look, or lacks what says whose it is.
        raise CommitFailed(
            f"Expected {incarnation_file(incarnation)}, the claim of this start, in {store.url}. Received: none. The "
            "directory was removed, emptied or unmounted. Nothing was committed; put it back as it was."
        )


def _check_still_there(store: Store, directory: str, parts: Sequence[Part], refs: Sequence[PartRef]) -> None:
    """Takes the manifest back if somebody has begun to clear the attempt away before it was there.

    No storage looks at the fence and creates the manifest in one operation. Who is held up in between, for as long as
    it takes a newer incarnation to save and to tidy up, has an attempt that counts as abandoned.
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
