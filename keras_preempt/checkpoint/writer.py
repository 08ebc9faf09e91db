"""A worker's part of a checkpoint: writing it, and removing it when the save failed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from keras_preempt.checkpoint import failpoints
from keras_preempt.checkpoint.boxes import Box
from keras_preempt.checkpoint.documents import as_read
from keras_preempt.checkpoint.errors import NotFound
from keras_preempt.checkpoint.layout import MANIFEST, local_file, mirrored_file, part_file, sharded_file
from keras_preempt.checkpoint.manifest import FileEntry, Part, PlacedBox, PlacedSlice
from keras_preempt.checkpoint.partition import SMALLEST_CUT, Slice, dtype_of
from keras_preempt.checkpoint.storage.store import Shown, Store, silent
from keras_preempt.checkpoint.tensors import Array, write_tensors

FILE_SIZE = 256 << 20
"""Bytes of mirrored or sharded tensors that a file holds at most, so that several can be transferred at a time; a
larger piece of a sharded tensor has a file of its own."""

_ROUNDING = 64  # bytes; room that is not worth an element


def write_part(
    store: Store,
    directory: str,
    member: int,
    mirrored: Sequence[tuple[Slice, Array]],
    local: Mapping[str, Array],
    state: Mapping[str, Any],
    position: Mapping[str, Any],
    before_file: Callable[[], None] = lambda: None,
    shown: Shown = silent,
    sharded: Sequence[tuple[Box, Array]] = (),
) -> Part:
    """Writes a worker's tensors, and then the part list, which declares the part complete.

    Pieces of sharded tensors come first, since nobody else may have them.

    Args:
        store: Where to.
        directory: The attempt's folder, see `layout.attempt_directory`.
        member: The worker's number.
        mirrored: Its share of the mirrored tensors: slices, each with the whole tensor; empty for a worker
            that may be gone before it has written much.
        local: The tensors that only this worker has, by name.
        state: JSON, see `Part`.
        position: JSON, see `Part`.
        before_file: Called before each file; an error that it raises ends the save.
        shown: Shows the progress.
        sharded: The pieces of sharded tensors that it has to write, each with its own values alone.

    Returns:
        The part as it was written; all of it is durable.

    Raises:
        ValueError: An array does not fit its slice or piece, or its type cannot be stored.
        TypeError: `state` or `position` is not JSON; nothing was written.
        AlreadyExists: This worker has written to that attempt before.
        StoreUnavailable: The storage failed.
    """
    for slice_, array in mirrored:
        if (array.dtype, array.shape) != (dtype_of(slice_.dtype), slice_.shape):
            raise ValueError(
                f"Expected {slice_.tensor!r} as {slice_.dtype}{list(slice_.shape)}. "
                f"Received: {array.dtype.name}{list(array.shape)}. Pass the whole tensor beside each slice."
            )
    for box, array in sharded:
        if (array.dtype, array.shape) != (dtype_of(box.dtype), box.extent):
            raise ValueError(
                f"Expected {box.key!r} as {box.dtype}{list(box.extent)}. Received: "
                f"{array.dtype.name}{list(array.shape)}. Pass the values of the piece alone beside it."
            )
    # As they will be read; fails on what is not JSON before anything is written.
    state, position = as_read(dict(state)), as_read(dict(position))
    size = sum(slice_.nbytes for slice_, _ in mirrored) + sum(box.nbytes for box, _ in sharded)
    most = min(FILE_SIZE, store.file_size(size))
    pending: list[tuple[str, Mapping[str, Array]]] = []
    boxes: list[PlacedBox] = []
    box_groups = list(_box_groups(sharded, most))
    for index, box_group in enumerate(box_groups):
        file = sharded_file(member, index if len(box_groups) > 1 else None)
        boxes += (PlacedBox(file, box) for box, _ in box_group)
        pending.append((file, {box.key: array for box, array in box_group}))
    placed: list[PlacedSlice] = []
    groups = list(_groups(mirrored, most))
    for index, group in enumerate(groups):
        file = mirrored_file(member, index if len(groups) > 1 else None)
        placed += (PlacedSlice(file, slice_) for slice_, _ in group)
        pending.append((file, {slice_.key: _cut(slice_, array) for slice_, array in group}))
    if local:
        pending.append((local_file(member), local))
    failpoints.point("save.before-parts")
    files: list[FileEntry] = []
    total = sum(array.nbytes for _, tensors in pending for array in tensors.values())
    with shown(f"Saving {directory}", total) as moved, store.overlapped():
        for file, tensors in pending:
            if files:
                failpoints.point("save.between-parts")
            before_file()
            files.append(write_tensors(store, directory, file, tensors, moved))
    part = Part(
        member=member,
        files=tuple(files),
        mirrored=tuple(placed),
        local=local_file(member) if local else None,
        state=state,
        position=position,
        sharded=tuple(boxes),
    )
    failpoints.point("save.before-part-list")
    store.create(f"{directory}/{part_file(member)}", part.to_json())
    failpoints.point("save.after-part")
    return part


def _groups(mirrored: Sequence[tuple[Slice, Array]], most: int) -> Iterator[list[tuple[Slice, Array]]]:
    """Distributes slices over files of up to `most` bytes; one that does not fit is cut if it is worth that."""
    group: list[tuple[Slice, Array]] = []
    room = most
    for slice_, array in mirrored:
        rest = slice_
        while rest.nbytes > room:
            if not group or (room >= _ROUNDING and rest.nbytes >= SMALLEST_CUT):
                # So all files but the last one are equally large, and several transfers end together.
                piece, rest = _split(rest, room)
                group.append((piece, array))
            yield group
            group, room = [], most
        group.append((rest, array))
        room -= rest.nbytes
    if group:
        yield group


def _box_groups(sharded: Sequence[tuple[Box, Array]], most: int) -> Iterator[list[tuple[Box, Array]]]:
    """Distributes pieces of sharded tensors over files of up to `most` bytes; none is cut further."""
    group: list[tuple[Box, Array]] = []
    room = most
    for box, array in sharded:
        if group and box.nbytes > room:
            yield group
            group, room = [], most
        group.append((box, array))
        room -= box.nbytes
    if group:
        yield group


def _split(slice_: Slice, size: int) -> tuple[Slice, Slice]:
    """Cuts a slice after `size` bytes."""
    middle = slice_.start + max(size // dtype_of(slice_.dtype).itemsize, 1)
    return replace(slice_, stop=middle), replace(slice_, start=middle)


def _cut(slice_: Slice, array: Array) -> Array:
    return array.reshape(-1)[slice_.start : slice_.stop].reshape(slice_.stored_shape)


def discard(store: Store, directory: str, member: int) -> bool:
    """Removes the files of one worker from an attempt that is not committed.

    Its part list goes first: without it the attempt cannot be committed. A committer that is faster by a moment finds
    the list gone afterwards, and takes its manifest back.

    Args:
        store: The run's directory.
        directory: The attempt's folder.
        member: The worker.

    Returns:
        Whether they are gone; they stay if the attempt was committed.

    Raises:
        StoreUnavailable: The storage failed. What is left is removed by the next start.
    """
    names = store.children(directory)
    if MANIFEST in names:
        return False
    part = part_file(member)
    own = [name for name in names if name.startswith(part.partition(".")[0] + ".")]
    for name in sorted(own, key=lambda name: name != part):
        with contextlib.suppress(NotFound):
            store.delete(f"{directory}/{name}")
    return True
