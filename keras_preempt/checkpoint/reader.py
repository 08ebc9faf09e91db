"""How checkpoints are found, verified and read back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from keras_preempt.checkpoint import documents, failpoints
from keras_preempt.checkpoint.assembly import Assembly, check_room, in_parallel
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
from keras_preempt.checkpoint.layout import (
    MANIFEST,
    attempt_directory,
    is_attempt,
    parse_attempt,
    parse_step,
)
from keras_preempt.checkpoint.manifest import Manifest, Part, PartRef
from keras_preempt.checkpoint.partition import check_tiling
from keras_preempt.checkpoint.storage.store import Shown, Store, silent
from keras_preempt.checkpoint.tensors import Array, new_places, read_tensors, read_to_places, verify_file

_LOOKS = 10  # at a directory in which others work; each one in vain means that they have saved and removed meanwhile

_PHASES = ("epoch", "train", "validation", "end")  # in the order in which an epoch passes them


@dataclass(frozen=True)
class CheckpointInfo:
    """A committed checkpoint.

    Attributes:
        step: optimizer steps done.
        attempt: name of the attempt that saved it; empty if the folder of the step cannot be looked into.
        directory: the attempt's folder in the store.
        manifest: what it says about itself; None if that cannot be read.
        error: why it cannot be read; None if it can.
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
        manifest: what the checkpoint says about itself.
        tensors: the mirrored tensors, by name.
        local: the worker's own tensors, by name.
        state: the worker's own state.
        substituted_from: the worker whose `local` and `state` these are, if the checkpoint lacks this
            worker's own.
    """

    manifest: Manifest
    tensors: dict[str, Array]
    local: dict[str, Array]
    state: dict[str, Any]
    substituted_from: int | None


def committed(store: Store) -> list[CheckpointInfo]:
    """Lists the committed checkpoints of a directory, the one furthest in the training first.

    The order is by step, then by position (one step may be saved before, in and after a validation), then by
    attempt, the latest first. One whose manifest cannot be read is listed before the others of its step.

    Raises:
        StoreUnavailable: the storage failed.
    """
    seen: list[tuple[str, str]] | None = None
    for _ in range(_LOOKS):
        found, without = _look(store)
        # Not all is seen at one moment. Where others save and remove meanwhile, what was seen may be gone, and what
        # has taken its place not seen yet; a run is not begun anew because of that.
        if found or not without or without == seen:
            return sorted(found, key=_progress, reverse=True)
        seen = without
    raise StoreUnavailable(
        f"Expected to list the checkpoints of {store.url}. Received: other ones every time, {_LOOKS} times. Another "
        "job saves and removes them meanwhile; stop it."
    )


def load(store: Store, info: CheckpointInfo, member: int, members: int, shown: Shown = silent) -> Loaded:
    """Reads what one worker needs from a checkpoint, and verifies every byte of it.

    Args:
        store: the run's directory.
        info: which checkpoint.
        member: the worker's number.
        members: how many workers there are now.
        shown: shows how much of it is read.

    Returns:
        The tensors and state. If the checkpoint has no part of this worker, those of the lowest one that has
        a part stand in, and `Loaded.substituted_from` says so.

    Raises:
        CorruptCheckpoint: a file is not what was written.
        UnsupportedFormat: it was written in a newer format.
        NotEnoughMemory: it is larger than what this process can have.
        StoreUnavailable: the storage failed.
    """
    if not 0 <= member < members:
        raise ValueError(
            f"Expected a worker numbered from 0 to {members - 1}. Received: {member}. Pass the worker's own "
            "number."
        )
    manifest = _manifest(info)
    failpoints.point("restore.before-read")
    refs = {ref.member: ref for ref in manifest.parts}
    source = member if member in refs else min(refs)
    parts = {
        number: _part(store, info, manifest, refs[number]) for number in sorted({source, *manifest.writers})
    }
    own = parts[source]
    tensors, local = _read(store, info, [parts[number] for number in manifest.writers], own, shown)
    failpoints.point("restore.after-read")
    return Loaded(manifest, tensors, local, own.state, None if source == member else source)


def load_own(
    store: Store, info: CheckpointInfo, shown: Shown = silent
) -> dict[int, tuple[dict[str, Array], dict[str, Any]]]:
    """Returns every worker's own tensors and state, by number, where there is a part; raises like `load`."""
    manifest = _manifest(info)
    parts = [_part(store, info, manifest, ref) for ref in manifest.parts]
    locals_ = {part.member: entry for part in parts for entry in part.files if entry.name == part.local}
    own = {}
    held = 0
    with shown(f"Reading {info.directory}", sum(entry.size for entry in locals_.values())) as moved:
        for part in parts:
            local: dict[str, Array] = {}
            entry = locals_.get(part.member)
            if entry is not None:
                held += entry.size
                check_room(info.directory, held)
                local = read_tensors(store, info.directory, entry, moved)
            own[part.member] = (local, part.state)
    return own


def verify(store: Store, info: CheckpointInfo, shown: Shown = silent) -> None:
    """Reads every byte of a checkpoint, of all workers, and makes sure that it is what was written.

    Raises:
        CorruptCheckpoint: a file is not what was written.
        UnsupportedFormat: it was written in a newer format.
        StoreUnavailable: the storage failed.
    """
    manifest = _manifest(info)
    parts = [_part(store, info, manifest, ref) for ref in manifest.parts]
    _check_whole(info, [part for part in parts if part.member in manifest.writers])
    entries = [entry for part in parts for entry in part.files]
    size = sum(entry.size for entry in entries)
    with shown(f"Reading {info.directory}", size) as moved:
        in_parallel([partial(verify_file, store, info.directory, entry, moved) for entry in entries], size)


def _look(store: Store) -> tuple[list[CheckpointInfo], list[tuple[str, str]]]:
    """Returns the checkpoints, and the folders of steps and of attempts that hold none (any more, or yet)."""
    found, without = [], []
    for folder in store.children(""):
        step = parse_step(folder)
        if step is None:
            continue
        try:
            attempts = [name for name in store.children(folder) if is_attempt(name)]
        except UnsafeName as error:  # a link that leads out of the directory
            found.append(CheckpointInfo(step, "", folder, None, error))
            continue
        if not attempts:
            without.append((folder, ""))
        for attempt in attempts:
            info = _info(store, step, attempt)
            if info is None:
                without.append((folder, attempt))
            else:
                found.append(info)
    return found, without


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


def _manifest(info: CheckpointInfo) -> Manifest:
    if info.manifest is None:
        raise info.error or CorruptCheckpoint(f"{info.directory}/{MANIFEST}", "no readable manifest")
    return info.manifest


def _part(store: Store, info: CheckpointInfo, manifest: Manifest, ref: PartRef) -> Part:
    name = f"{info.directory}/{ref.name}"
    part = Part.from_document(documents.read_listed(store, name, size=ref.size, crc32c=ref.crc32c), name)
    if part.member != ref.member:
        raise CorruptCheckpoint(name, f"the part of worker {part.member}")
    if part.position != manifest.position:
        raise CorruptCheckpoint(name, f"a part saved at {part.position} instead of {manifest.position}")
    return part


def _check_whole(info: CheckpointInfo, parts: list[Part]) -> None:
    try:
        check_tiling(placed.slice for part in parts for placed in part.mirrored)
    except ValueError as error:
        raise CorruptCheckpoint(
            f"{info.directory}/{MANIFEST}", f"parts that do not fit together: {error}"
        ) from error


def _read(
    store: Store, info: CheckpointInfo, writers: list[Part], own: Part, shown: Shown
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Reads the mirrored tensors and one worker's own, several files at once."""
    _check_whole(info, writers)
    assembly = Assembly(info.directory, writers)
    locals_ = [(entry, new_places) for entry in own.files if entry.name == own.local]
    wanted = [*assembly.files, *locals_]
    size = sum(entry.size for entry, _ in wanted)
    with shown(f"Reading {info.directory}", size) as moved:
        files = [(CheckedFile(store, info.directory, entry, moved), places) for entry, places in wanted]
        in_parallel([file.check_size for file, _ in files], size)
        check_room(info.directory, size)
        assembly.allocate()
        read = in_parallel([partial(read_to_places, *pair) for pair in files], size)
    return assembly.tensors, read[-1] if locals_ else {}
