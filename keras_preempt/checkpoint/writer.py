"""A worker's part of a checkpoint: writing it, and removing it when the save failed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from keras_preempt.checkpoint import failpoints
from keras_preempt.checkpoint.division import SMALLEST_CUT
from keras_preempt.checkpoint.documents import as_read
from keras_preempt.checkpoint.dtypes import dtype_of
from keras_preempt.checkpoint.errors import NotFound
from keras_preempt.checkpoint.layout import MANIFEST, part_file, tensor_file
from keras_preempt.checkpoint.manifest import FileEntry, Part, Placed
from keras_preempt.checkpoint.storage.store import Shown, Store, silent
from keras_preempt.checkpoint.tensors import Array, write_tensors
from keras_preempt.checkpoint.values import Box, size_of

FILE_SIZE = 256 << 20
"""Bytes of boxes that a file holds at most, so that several can be transferred at a time; a larger piece of a divided
value has a file of its own."""

_ROUNDING = 64  # bytes; room that is not worth an element


@dataclass(frozen=True)
class WorkerShare:
    """What one worker writes of a checkpoint: boxes with their values, its own values by name, and JSON data."""

    boxes: Sequence[tuple[Box, Array]]
    local: Mapping[str, Array]
    state: Mapping[str, Any]
    position: Mapping[str, Any]


def write_part(
    store: Store,
    directory: str,
    member: int,
    share: WorkerShare,
    before_file: Callable[[], None] = lambda: None,
    shown: Shown = silent,
) -> Part:
    """Writes a worker's tensors, and then the part list, which declares the part complete. All of it is durable then.

    Pieces of divided values come first, since nobody else may have them. `before_file` is called before each file; an
    error that it raises ends the save.

    Raises:
        ValueError: An array does not fit its box, or its type cannot be stored.
        TypeError: The state is not JSON; nothing was written.
        AlreadyExists: This worker has written to that attempt before.
        StoreUnavailable: The storage failed.
    """
    for box, array in share.boxes:
        if (array.dtype, array.shape) != (dtype_of(box.dtype), box.extent):
            raise ValueError(
                f"Expected {box.key!r} as {box.dtype}{list(box.extent)}. Received: "
                f"{array.dtype.name}{list(array.shape)}. Pass the values of the box alone beside it."
            )
    # As they will be read; fails on what is not JSON before anything is written.
    state, position = as_read(dict(share.state)), as_read(dict(share.position))
    most = min(FILE_SIZE, store.file_size(size_of(box for box, _ in share.boxes)))
    pending: list[tuple[str, Mapping[str, Array]]] = []
    placed: list[Placed] = []
    for flat, kind in ((False, "sharded"), (True, "mirrored")):
        groups = list(_files([(box, array) for box, array in share.boxes if box.flat == flat], most))
        for index, group in enumerate(groups):
            file = tensor_file(member, kind, index if len(groups) > 1 else None)
            placed += (Placed(file, box) for box, _ in group)
            pending.append((file, {box.key: array.reshape(box.stored_shape) for box, array in group}))
    local = tensor_file(member, "local") if share.local else None
    if local is not None:
        pending.append((local, share.local))
    failpoints.point("save.before-parts")
    files: list[FileEntry] = []
    total = sum(array.nbytes for _, tensors in pending for array in tensors.values())
    with shown(f"Saving {directory}", total) as moved, store.overlapped():
        for file, tensors in pending:
            if files:
                failpoints.point("save.between-parts")
            before_file()
            files.append(write_tensors(store, directory, file, tensors, moved))
    part = Part(member, tuple(files), tuple(placed), local, state, position)
    failpoints.point("save.before-part-list")
    store.create(f"{directory}/{part_file(member)}", part.to_json())
    failpoints.point("save.after-part")
    return part


def _files(boxes: Sequence[tuple[Box, Array]], most: int) -> Iterator[list[tuple[Box, Array]]]:
    """Distributes boxes over files of up to `most` bytes; a run that does not fit is cut if it is worth that."""
    group: list[tuple[Box, Array]] = []
    room = most
    for box, array in boxes:
        while box.nbytes > room:
            count = max(room // array.dtype.itemsize, 1)
            worth_a_cut = not group or (room >= _ROUNDING and box.nbytes >= SMALLEST_CUT)
            if box.flat and worth_a_cut and count < len(array):
                # So all files but the last one are equally large, and several transfers end together.
                middle = (box.start[0] + count,)
                group.append((replace(box, stop=middle), array[:count]))
                box, array = replace(box, start=middle), array[count:]
            elif not group:
                break  # What cannot be cut and is larger than that has a file of its own.
            yield group
            group, room = [], most
        group.append((box, array))
        room -= box.nbytes
    if group:
        yield group


def discard(store: Store, directory: str, member: int) -> bool:
    """Removes the files of one worker from an attempt; returns False if that was committed, so that they stay.

    Its part list goes first: without it the attempt cannot be committed. A committer that is faster by a moment finds
    the list gone afterwards, and takes its manifest back. What is left when the storage fails, the next start removes.
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
