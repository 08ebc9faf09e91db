"""How a worker writes its part of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from keras_preempt import failpoints
from keras_preempt.checkpoint.documents import as_read
from keras_preempt.checkpoint.dtypes import dtype_of
from keras_preempt.checkpoint.layout import local_file, mirrored_file, part_file
from keras_preempt.checkpoint.manifest import FileEntry, Part, PlacedSlice
from keras_preempt.checkpoint.partition import Slice
from keras_preempt.checkpoint.store import Store
from keras_preempt.checkpoint.tensors import Array, write_tensors

FILE_SIZE = 256 << 20
"""Bytes of mirrored tensors that a file holds at most, so that several can be transferred at a time."""


def write_part(
    store: Store,
    directory: str,
    member: int,
    mirrored: Sequence[tuple[Slice, Array]],
    local: Mapping[str, Array],
    state: Mapping[str, Any],
    position: Mapping[str, Any],
    before_file: Callable[[], None] = lambda: None,
) -> Part:
    """Writes a worker's tensors, and then the list of them, which declares the part complete.

    Args:
        store: where to.
        directory: the attempt's folder, see `layout.attempt_directory`.
        member: the worker's number.
        mirrored: its share of the mirrored tensors: slices, each with the whole tensor; empty for a worker
            that may be gone before it has written much.
        local: the tensors that only this worker has, by name.
        state: JSON, see `Part`.
        position: JSON, see `Part`.
        before_file: called before each file; what it raises ends the save.

    Returns:
        The part as it was written; all of it is durable.

    Raises:
        ValueError: an array does not fit its slice, or its type cannot be stored.
        TypeError: `state` or `position` is not JSON; nothing was written.
        AlreadyExists: this worker has written to that attempt before.
        StoreUnavailable: the storage failed.
    """
    for slice_, array in mirrored:
        if (array.dtype, array.shape) != (dtype_of(slice_.dtype), slice_.shape):
            raise ValueError(
                f"Expected {slice_.tensor!r} as {slice_.dtype}{list(slice_.shape)}. "
                f"Received: {array.dtype.name}{list(array.shape)}. Pass the whole tensor beside each slice."
            )
    # As they will be read; fails on what is not JSON before anything is written.
    state, position = as_read(dict(state)), as_read(dict(position))
    groups = list(_groups(mirrored))
    pending: list[tuple[str, Mapping[str, Array]]] = []
    placed: list[PlacedSlice] = []
    for index, group in enumerate(groups):
        file = mirrored_file(member, index if len(groups) > 1 else None)
        placed += (PlacedSlice(file, slice_) for slice_, _ in group)
        pending.append((file, {slice_.key: _cut(slice_, array) for slice_, array in group}))
    if local:
        pending.append((local_file(member), local))
    failpoints.point("save.before-parts")
    files: list[FileEntry] = []
    for file, tensors in pending:
        if files:
            failpoints.point("save.between-parts")
        before_file()
        files.append(write_tensors(store, directory, file, tensors))
    part = Part(
        member=member,
        files=tuple(files),
        mirrored=tuple(placed),
        local=local_file(member) if local else None,
        state=state,
        position=position,
    )
    failpoints.point("save.before-part-list")
    store.create(f"{directory}/{part_file(member)}", part.to_json())
    failpoints.point("save.after-part")
    return part


def _groups(mirrored: Sequence[tuple[Slice, Array]]) -> Iterator[list[tuple[Slice, Array]]]:
    """Distributes slices over files of up to `FILE_SIZE` bytes; a larger slice is cut."""
    group: list[tuple[Slice, Array]] = []
    size = 0
    for whole, array in mirrored:
        for slice_ in _pieces(whole):
            if group and size + slice_.nbytes > FILE_SIZE:
                yield group
                group, size = [], 0
            group.append((slice_, array))
            size += slice_.nbytes
    if group:
        yield group


def _pieces(slice_: Slice) -> Iterator[Slice]:
    if slice_.nbytes <= FILE_SIZE:
        yield slice_
        return
    count = FILE_SIZE // dtype_of(slice_.dtype).itemsize
    for start in range(slice_.start, slice_.stop, count):
        stop = min(start + count, slice_.stop)
        yield Slice(slice_.tensor, slice_.dtype, slice_.shape, start, stop)


def _cut(slice_: Slice, array: Array) -> Array:
    return array.reshape(-1)[slice_.start : slice_.stop].reshape(slice_.stored_shape)
