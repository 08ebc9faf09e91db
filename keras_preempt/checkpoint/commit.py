"""The commit: the parts of an attempt become a checkpoint when one worker writes the manifest, once and last.

It uses storage alone. The coordination service is no help here, since the worker that hosts it may be the one whose
machine goes away.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import google_crc32c

from keras_preempt.checkpoint import documents, failpoints, incarnations
from keras_preempt.checkpoint.errors import (
    AlreadyExists,
    CommitFailed,
    Fenced,
    NotFound,
    PartsMissing,
    PositionMismatch,
    StoreUnavailable,
    TooLarge,
)
from keras_preempt.checkpoint.layout import (
    MANIFEST,
    attempt_directory,
    incarnation_file,
    parse_attempt,
    part_file,
)
from keras_preempt.checkpoint.manifest import FORMAT, Manifest, Part, PartRef
from keras_preempt.checkpoint.partition import TensorSpec, check_tiling
from keras_preempt.checkpoint.storage.store import Store

_SAME_COMMIT = ("step", "attempt", "position")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt to save a checkpoint: what all workers that take part in it know alike.

    Attributes:
        step: Optimizer steps done.
        name: From `layout.attempt_name`; it says which start of the job saves.
        position: Where in the training, as JSON; the same for every worker.
        kind: See `Manifest`, as are `finished`, `reason` and `versions`.
        members: How many workers the job has; they are numbered from 0.
        writers: Those that write the mirrored tensors; all of them must arrive.
        doomed: Those whose part may be missing, since they are being taken away; not the writers among them.
        specs: The mirrored tensors that there must be; None to check only that those which are there are complete.

    Raises:
        ValueError: There is no writer, a worker has another number, or `name` is not that of an attempt.
        TypeError: `position` or `versions` is not JSON.
    """

    step: int
    name: str
    position: Mapping[str, Any]
    kind: str
    members: int
    writers: tuple[int, ...]
    doomed: tuple[int, ...] = ()
    finished: bool = False
    reason: str = ""
    versions: Mapping[str, Any] = field(default_factory=dict)
    specs: Sequence[TensorSpec] | None = None

    def __post_init__(self) -> None:
        if not self.writers or not {*self.writers, *self.doomed} <= set(range(self.members)):
            raise ValueError(
                f"Expected at least one writer, and writers and doomed ones among {self.members} workers numbered "
                f"from 0. Received: writers {list(self.writers)}, doomed {list(self.doomed)}. Correct the plan."
            )
        parse_attempt(self.name)
        for name in ("position", "versions"):  # As they will be read back.
            object.__setattr__(self, name, documents.as_read(dict(getattr(self, name))))

    @property
    def directory(self) -> str:
        """Its folder in the store."""
        return attempt_directory(self.step, self.name)

    @property
    def incarnation(self) -> int:
        """The start of the job that saves."""
        return parse_attempt(self.name)[0]


def commit(
    store: Store,
    attempt: Attempt,
    *,
    timeout: float,
    optional_timeout: float,
    gone: Callable[[], Collection[int]] = tuple,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
    now: Callable[[], float] = time.time,
) -> Manifest:
    """Waits for the parts of an attempt, checks that they fit together, and writes the manifest.

    Several workers may call this for one attempt: one manifest is stored, and all of them return it.

    Args:
        store: The run's directory.
        attempt: Which attempt.
        timeout: Seconds to wait for the parts that must arrive.
        optional_timeout: Seconds to wait for those that may be missing, counted from the same moment.
        gone: Returns the workers that are known to be gone: nobody waits for them.
        clock: Monotonic seconds.
        wait: Waits for a number of seconds; may return sooner.
        now: Seconds since the epoch.

    Returns:
        The manifest that is stored.

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
    sizes = _wait_for_parts(store, attempt, timeout, optional_timeout, gone, clock, wait)
    members = range(attempt.members)
    present = [member for member in members if part_file(member) in sizes]
    parts, refs = _read_parts(store, attempt.directory, present)
    _check_positions(attempt, parts)
    _check_files(attempt, parts, sizes)
    _check_slices(attempt, parts)
    manifest = Manifest(
        format=FORMAT,
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
        missing=tuple(member for member in members if member not in present),
        created_at=now(),
        versions=dict(attempt.versions),
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
    """Waits until another worker has committed an attempt.

    Args:
        store: The run's directory.
        directory: The attempt's folder.
        timeout: Seconds to wait.
        given_up: Whether waiting is pointless from now on.
        clock: Monotonic seconds.
        wait: Waits for a number of seconds; may return sooner.

    Returns:
        The manifest; None if there is none in time.

    Raises:
        CorruptCheckpoint: The manifest is not what was written.
        StoreUnavailable: The storage failed.
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
        NotFound: The attempt was not committed.
        UnsupportedFormat: It was written in a newer format.
        CorruptCheckpoint: It is not what was written.
    """
    name = f"{directory}/{MANIFEST}"
    return Manifest.from_document(documents.read(store, name), name)


def _wait_for_parts(
    store: Store,
    attempt: Attempt,
    timeout: float,
    optional_timeout: float,
    gone: Callable[[], Collection[int]],
    clock: Callable[[], float],
    wait: Callable[[float], object],
) -> dict[str, int]:
    """Returns the sizes of the attempt's files by plain name, once the part lists are there or time is up."""
    members = range(attempt.members)
    required = set(members) - (set(attempt.doomed) - set(attempt.writers))
    begun = clock()
    pause, longest_pause = store.look_again
    while True:
        waited = clock() - begun
        dead = frozenset(gone())  # Before the look: what it wrote at last is seen.
        sizes = _sizes(store, attempt.directory)
        absent = [member for member in members if part_file(member) not in sizes]
        late = [member for member in absent if member in required]
        awaited = [member for member in absent if member not in dead]
        if not absent or (not late and (not awaited or waited >= optional_timeout)):
            return sizes
        if late and (waited >= timeout or not dead.isdisjoint(late)):
            # Another survivor may have given this attempt up already, and taken its own part away.
            lost = [member for member in late if member in dead] or late
            raise PartsMissing(
                f"Expected the part lists of workers {_some(sorted(required))} in {store.url}/{attempt.directory}. "
                f"Received: none of {'worker' if len(late) == 1 else 'workers'} {_some(late)} in time. "
                "Nothing was committed; the newest earlier checkpoint stays valid. Check that all workers "
                "share the directory.",
                tuple(lost),
            )
        wait(min(pause, max((timeout if late else optional_timeout) - waited, 0.0)))
        pause = min(2 * pause, longest_pause)


def check_fence(store: Store, incarnation: int) -> None:
    """Makes sure that the directory is still this start's.

    Raises:
        Fenced: A newer incarnation has claimed it.
        CommitFailed: It is not the one any more that this start has claimed.
        StoreUnavailable: The storage failed.
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


def _read_parts(store: Store, directory: str, members: Sequence[int]) -> tuple[list[Part], list[PartRef]]:
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
        part = Part.from_document(documents.decode(data, path), path)
        if part.member != member:
            raise CommitFailed(
                f"Expected the part of worker {member} in {path}. Received: that of worker {part.member}. "
                "Nothing was committed; two workers seem to have the same number."
            )
        parts.append(part)
        refs.append(PartRef(member, name, len(data), google_crc32c.value(data)))
    return parts, refs


def _check_positions(attempt: Attempt, parts: Sequence[Part]) -> None:
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


def _check_files(attempt: Attempt, parts: Sequence[Part], sizes: Mapping[str, int]) -> None:
    """Makes sure that every listed file is there in its listed size. Raises `CommitFailed`."""
    for part in parts:
        for entry in part.files:
            if sizes.get(entry.name) != entry.size:
                raise CommitFailed(
                    f"Expected {attempt.directory}/{entry.name} with {entry.size} bytes, as worker {part.member} "
                    f"lists it. Received: {sizes.get(entry.name, 'no such file')}. Nothing was committed; check the "
                    "storage."
                )


def _check_slices(attempt: Attempt, parts: Sequence[Part]) -> None:
    """Makes sure that the writers, and only they, wrote every tensor exactly once. Raises `CommitFailed`."""
    for part in parts:
        if part.mirrored and part.member not in attempt.writers:
            raise CommitFailed(
                f"Expected mirrored tensors only from the writers {_some(sorted(attempt.writers))} of "
                f"{attempt.directory}. Received: some from worker {part.member}. Nothing was committed; check that "
                "all workers have the same plan."
            )
    try:
        check_tiling((placed.slice for part in parts for placed in part.mirrored), attempt.specs)
    except ValueError as error:
        raise CommitFailed(
            f"Expected the parts in {attempt.directory} to make up every tensor exactly once. Received: {error}. "
            "Nothing was committed; check that all workers build the same model."
        ) from error


def _some(members: Sequence[int]) -> str:
    """Returns numbers for a message: the first ten, and how many more."""
    shown = ", ".join(str(member) for member in members[:10])
    return shown if len(members) <= 10 else f"{shown} and {len(members) - 10} more"
