"""Tensors that were cut over many files, put together in memory: each piece is read to where it belongs."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from keras_preempt.checkpoint.errors import CorruptCheckpoint, NotEnoughMemory
from keras_preempt.checkpoint.manifest import FileEntry, Part
from keras_preempt.checkpoint.partition import Slice, elements
from keras_preempt.checkpoint.tensors import Array, Places, StoredTensor, empty
from keras_preempt.process.threads import Pool

_CONTAINER_LIMITS = (  # of control groups, version 2 and 1, as a process in a container sees its own
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)

_PROCESS = Path("/proc/self/statm")

Result = TypeVar("Result")

TRANSFERS = 4
"""How many at a time: enough to keep a disk busy while sums are taken, and a network while answers are awaited."""

_SMALL = 8 << 20  # bytes in all, below which one after the other is as fast


class Assembly:
    """The mirrored tensors of a checkpoint, and which bytes of them lie in which file.

    Args:
        directory: The attempt's folder, for messages.
        parts: The parts of the writers; their slices make up every tensor exactly once.

    Attributes:
        files: The files that hold mirrored tensors, each with what says where its content belongs, and raises
            `CorruptCheckpoint` if that is not what its part list says.
        tensors: The tensors by name; filled as the files are read.
    """

    def __init__(self, directory: str, parts: Sequence[Part]) -> None:
        self._directory = directory
        self._slices = [placed.slice for part in parts for placed in part.mirrored]
        self.files: list[tuple[FileEntry, Places]] = []
        for part in parts:
            wanted: dict[str, dict[str, Slice]] = {}
            for placed in part.mirrored:
                wanted.setdefault(placed.file, {})[placed.slice.key] = placed.slice
            for entry in part.files:
                if entry.name in wanted:
                    self.files.append((entry, partial(self._places, entry.name, wanted[entry.name])))
        self.tensors: dict[str, Array] = {}

    def allocate(self) -> None:
        """Takes the memory for all tensors. The sizes of all files must have been checked before."""
        for slice_ in self._slices:
            if slice_.tensor not in self.tensors:
                self.tensors[slice_.tensor] = empty(slice_.dtype, slice_.shape)

    def _places(
        self, file: str, wanted: Mapping[str, Slice], stored: Sequence[StoredTensor]
    ) -> Mapping[str, Array]:
        listed = {key: (slice_.dtype, slice_.stored_shape) for key, slice_ in wanted.items()}
        check_stored(f"{self._directory}/{file}", stored, listed)
        return {key: self._place(slice_) for key, slice_ in wanted.items()}

    def _place(self, slice_: Slice) -> Array:
        return self.tensors[slice_.tensor].reshape(elements(slice_.shape))[slice_.start : slice_.stop]


def check_stored(
    name: str, stored: Sequence[StoredTensor], listed: Mapping[str, tuple[str, tuple[int, ...]]]
) -> None:
    """Makes sure that a file holds what its part list says.

    Args:
        name: The file, for messages.
        stored: What its header says.
        listed: Element type and shape of each tensor, by key.

    Raises:
        CorruptCheckpoint: It does not.
    """
    if {tensor.key for tensor in stored} != listed.keys():
        raise CorruptCheckpoint(name, "other tensors than its part list names")
    for tensor in stored:
        if (tensor.dtype, tensor.shape) != listed[tensor.key]:
            raise CorruptCheckpoint(
                name, f"{tensor.key!r:.200} as {tensor.dtype}{list(tensor.shape)}, not as its part list says"
            )


def check_listed(directory: str, part: Part, file: str, stored: Sequence[StoredTensor]) -> None:
    """Makes sure that a file of a part holds what its part list says, which names none of a worker's own tensors.

    Args:
        directory: The attempt's folder, for messages.
        part: The part.
        file: The name of the file.
        stored: What its header says.

    Raises:
        CorruptCheckpoint: It does not.
    """
    slices = [placed.slice for placed in part.mirrored if placed.file == file]
    boxes = [placed.box for placed in part.sharded if placed.file == file]
    listed = {piece.key: (piece.dtype, piece.stored_shape) for piece in slices}
    listed.update((box.key, (box.dtype, box.extent)) for box in boxes)
    if file != part.local:
        check_stored(f"{directory}/{file}", stored, listed)


def memory_limit() -> int:
    """Returns how many bytes this process can have at most: of the machine, its container and its ulimit."""
    page = os.sysconf("SC_PAGE_SIZE")
    limits = [os.sysconf("SC_PHYS_PAGES") * page]
    for path in _CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no control groups, or no memory_limit ("max")
            limits.append(int(path.read_text()))
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY:
        taken = 0
        with contextlib.suppress(OSError, ValueError):  # not on Linux
            taken = int(_PROCESS.read_text().split()[0]) * page
        limits.append(max(0, addresses - taken))
    return min(limits)


def check_room(directory: str, size: int) -> None:
    """Makes sure that `size` bytes of a checkpoint could find room in memory, before any is taken.

    A file of a terabyte takes no disk if it is one hole. So the sizes that a checkpoint lists are compared with what
    this process can have: then an older checkpoint can be used, where the system would have killed the process.

    Where other processes have taken the memory, a `MemoryError` comes later: that is not the checkpoint's fault, and
    no reason to go back to an older one.

    Raises:
        NotEnoughMemory: They could not, whatever else runs.
    """
    most = memory_limit()
    if size > most:
        raise NotEnoughMemory(directory, size, most)


def in_parallel(calls: Sequence[Callable[[], Result]], size: int) -> list[Result]:
    """Makes calls, several at a time where that is worth threads, and returns when all have ended.

    Args:
        calls: What to do; each in any thread.
        size: How many bytes all of them together move.

    Returns:
        What they returned, in their order.

    Raises:
        BaseException: The first error, in their order; calls that had not begun by then are not made.
    """
    if len(calls) < 2 or size < _SMALL:
        return [call() for call in calls]
    with Pool(min(TRANSFERS, len(calls)), "keras_preempt-transfer") as pool:
        futures = [pool.submit(call) for call in calls]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()
