"""How checkpoints are found, verified and read back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_preempt import failpoints
from keras_preempt.checkpoint import documents
from keras_preempt.checkpoint.commit import read_manifest
from keras_preempt.checkpoint.dtypes import dtype_of
from keras_preempt.checkpoint.errors import CheckpointError, CorruptCheckpoint, NotFound, UnsupportedFormat
from keras_preempt.checkpoint.layout import (
    MANIFEST,
    attempt_directory,
    is_attempt,
    parse_attempt,
    parse_step,
    step_directory,
)
from keras_preempt.checkpoint.manifest import Manifest, Part, PartRef, PlacedSlice
from keras_preempt.checkpoint.partition import Slice, check_tiling, elements
from keras_preempt.checkpoint.store import Store
from keras_preempt.checkpoint.tensors import Array, read_tensors, verify_file

_PHASES = ("epoch", "train", "validation", "end")  # in the order in which an epoch passes them


@dataclass(frozen=True)
class CheckpointInfo:
    """A committed checkpoint.

    Attributes:
        step: optimizer steps done.
        attempt: name of the attempt that saved it.
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
    found = []
    for folder in store.children(""):
        step = parse_step(folder)
        if step is None:
            continue
        for attempt in store.children(step_directory(step)):
            if is_attempt(attempt):
                info = _info(store, step, attempt)
                if info is not None:
                    found.append(info)
    return sorted(found, key=_progress, reverse=True)


def load(store: Store, info: CheckpointInfo, member: int, members: int) -> Loaded:
    """Reads what one worker needs from a checkpoint, and verifies every byte of it.

    Args:
        store: the run's directory.
        info: which checkpoint.
        member: the worker's number.
        members: how many workers there are now.

    Returns:
        The tensors and state. If the checkpoint has no part of this worker, those of the lowest one that has
        a part stand in, and `Loaded.substituted_from` says so.

    Raises:
        CorruptCheckpoint: a file is not what was written.
        UnsupportedFormat: it was written in a newer format.
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
    tensors = _assemble(store, info, [parts[number] for number in manifest.writers])
    own = parts[source]
    local = {}
    for entry in own.files:
        if entry.name == own.local:
            local = read_tensors(store, info.directory, entry)
    failpoints.point("restore.after-read")
    return Loaded(manifest, tensors, local, own.state, None if source == member else source)


def load_states(store: Store, info: CheckpointInfo) -> dict[int, dict[str, Any]]:
    """Returns the state of every worker that the checkpoint has a part of, by number; raises like `load`."""
    manifest = _manifest(info)
    return {ref.member: _part(store, info, manifest, ref).state for ref in manifest.parts}


def verify(store: Store, info: CheckpointInfo) -> None:
    """Reads every byte of a checkpoint, of all workers, and makes sure that it is what was written.

    Raises:
        CorruptCheckpoint: a file is not what was written.
        UnsupportedFormat: it was written in a newer format.
        StoreUnavailable: the storage failed.
    """
    manifest = _manifest(info)
    parts = [_part(store, info, manifest, ref) for ref in manifest.parts]
    _check_whole(info, [part for part in parts if part.member in manifest.writers])
    for part in parts:
        for entry in part.files:
            verify_file(store, info.directory, entry)


def _info(store: Store, step: int, attempt: str) -> CheckpointInfo | None:
    directory = attempt_directory(step, attempt)
    try:
        manifest = read_manifest(store, directory)
    except NotFound:
        return None
    except (CorruptCheckpoint, UnsupportedFormat) as error:
        return CheckpointInfo(step, attempt, directory, None, error)
    if (manifest.step, manifest.attempt) != (step, attempt):
        why = f"the manifest of step {manifest.step}, attempt {manifest.attempt}"
        return CheckpointInfo(
            step, attempt, directory, None, CorruptCheckpoint(f"{directory}/{MANIFEST}", why)
        )
    return CheckpointInfo(step, attempt, directory, manifest)


def _progress(info: CheckpointInfo) -> tuple[int, bool, bool, int, int, int, tuple[int, int]]:
    attempt = parse_attempt(info.attempt)
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


def _assemble(store: Store, info: CheckpointInfo, parts: list[Part]) -> dict[str, Array]:
    """Reads all mirrored tensors; pieces are copied to their place file by file."""
    _check_whole(info, parts)
    tensors: dict[str, Array] = {}
    for part in parts:
        placed_in: dict[str, list[PlacedSlice]] = {}
        for placed in part.mirrored:
            placed_in.setdefault(placed.file, []).append(placed)
        for entry in part.files:
            wanted = placed_in.get(entry.name, [])
            if not wanted:
                continue
            name = f"{info.directory}/{entry.name}"
            stored = read_tensors(store, info.directory, entry)
            if stored.keys() != {placed.slice.key for placed in wanted} or len(stored) != len(wanted):
                raise CorruptCheckpoint(name, "other tensors than its part list names")
            for placed in wanted:
                _place(tensors, placed.slice, stored[placed.slice.key], name)
    return tensors


def _place(tensors: dict[str, Array], slice_: Slice, array: Array, file: str) -> None:
    if (array.dtype, array.shape) != (dtype_of(slice_.dtype), slice_.stored_shape):
        raise CorruptCheckpoint(
            file, f"{slice_.key!r} as {array.dtype.name}{list(array.shape)}, not as its part list says"
        )
    if slice_.whole:
        tensors[slice_.tensor] = array.reshape(slice_.shape)
        return
    flat = tensors.get(slice_.tensor)
    if flat is None:
        flat = tensors[slice_.tensor] = np.empty(slice_.shape, dtype_of(slice_.dtype))
    flat.reshape(elements(slice_.shape))[slice_.start : slice_.stop] = array
