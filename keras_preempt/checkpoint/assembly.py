"""Tensors that were cut over many files, put together in memory: each box is read to where it belongs."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from keras_preempt.checkpoint.checked_file import CheckedFile
from keras_preempt.checkpoint.errors import CorruptCheckpoint, NotEnoughMemory
from keras_preempt.checkpoint.manifest import Part
from keras_preempt.checkpoint.storage.parallel import TRANSFERS
from keras_preempt.checkpoint.tensors import Array, StoredTensor, empty, read_to_places
from keras_preempt.checkpoint.values import Box, size_of
from keras_preempt.checkpoint.worker_values import WorkerValues

_CONTAINER_LIMITS = (  # of control groups, version 2 and 1, as a process in a container sees its own
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)

_PROCESS = Path("/proc/self/statm")

Wanted = Mapping[str, Sequence[Box]]
"""The boxes that a worker needs of the tensors that are divided among workers now, by the tensor's name."""


class Assembly:
    """The values of a checkpoint that its writers stored together, as far as one worker needs them.

    Args:
        directory: The attempt's folder, for messages.
        parts: The parts of the writers; their boxes make up every value exactly once.
        wanted: Which boxes are needed of which values; every other value is needed whole. Raises `CorruptCheckpoint` if
            one is of another shape or type than the checkpoint's.

    Attributes:
        mirrored: The files with runs, of which every worker needs all.
        pieces: Those files with other boxes in which something is needed.
        room: Bytes of memory that reading `pieces` takes at most.
    """

    def __init__(self, directory: str, parts: Sequence[Part], wanted: Wanted) -> None:
        self._directory = directory
        self._wanted = wanted
        self._stored: dict[str, dict[str, Box]] = {}
        self._needed: dict[str, Sequence[Box]] = {}
        for placed in (placed for part in parts for placed in part.boxes):
            box = placed.box
            self._stored.setdefault(placed.file, {})[box.key] = box
            if box.tensor not in self._needed:
                boxes = wanted.get(box.tensor)
                for other in boxes or ():
                    if (other.dtype, other.shape) != (box.dtype, box.shape):
                        raise CorruptCheckpoint(
                            directory,
                            f"{box.tensor!r:.200} as {box.dtype}{list(box.shape)}, not "
                            f"{other.dtype}{list(other.shape)} as the model has it",
                        )
                # A run cannot be read to where a box lies: such a tensor is read whole, and cut afterwards.
                self._needed[box.tensor] = (box.whole,) if boxes is None or box.flat else boxes
        entries = [entry for part in parts for entry in part.files if entry.name in self._stored]
        runs = {name for name, boxes in self._stored.items() if all(box.flat for box in boxes.values())}
        self.mirrored = [entry for entry in entries if entry.name in runs]
        self.pieces = [
            entry
            for entry in entries
            if entry.name not in runs
            and any(
                box.intersection(needed) is not None
                for box in self._stored[entry.name].values()
                for needed in self._needed[box.tensor]
            )
        ]
        # What is not read to its place is read beside it, a file at a time in each of the threads.
        beside = sorted((entry.size for entry in self.pieces), reverse=True)[:TRANSFERS]
        in_pieces = {box.tensor for entry in self.pieces for box in self._stored[entry.name].values()}
        self.room = sum(size_of(self._needed[name]) for name in in_pieces) + sum(beside)
        self._filled: dict[str, dict[Box, Array]] = {}

    def allocate(self) -> None:
        """Takes the memory for what is needed. The sizes of all files must have been checked before."""
        for name, boxes in self._needed.items():
            self._filled[name] = {box: empty(box.dtype, box.extent) for box in boxes}

    def places(self, file: str, stored: Sequence[StoredTensor]) -> Mapping[str, Array]:
        """Returns where the content of a file belongs; raises `CorruptCheckpoint` if its part list says otherwise."""
        listed = self._stored[file]
        check_stored(f"{self._directory}/{file}", listed.values(), stored)
        return {key: self._place(box) for key, box in listed.items()}

    def _place(self, box: Box) -> Array:
        """Returns where to read a box to: where it is needed, if its bytes are contiguous there; else beside."""
        for needed, array in self._filled[box.tensor].items():
            if box.intersection(needed) == box:
                place = box.within(needed, array)
                if place.flags.c_contiguous:
                    return place
        return empty(box.dtype, box.extent)

    def read_pieces(self, file: CheckedFile) -> None:
        """Reads one of `pieces`, and puts what is in it to where it is needed; raises like `read_to_places`.

        It returns nothing of the file, so that what was read beside its place takes memory no longer.
        """
        read = read_to_places(file, partial(self.places, file.entry.name)).tensors
        for key, box in self._stored[file.entry.name].items():
            for needed, array in self._filled[box.tensor].items():
                common = box.intersection(needed)
                if common is None:
                    continue
                place = common.within(needed, array)
                if not np.may_share_memory(place, read[key]):  # Otherwise it was read to its place.
                    place[...] = common.within(box, read[key].reshape(box.extent))

    def values(self) -> WorkerValues:
        """Returns the values, which are complete when all files are read and what others have read was exchanged."""
        values = WorkerValues()
        for name, filled in self._filled.items():
            if name not in self._wanted:
                ((box, array),) = filled.items()
                values.whole[name] = array.reshape(box.shape)
            elif any(box.flat for box in filled):
                ((box, array),) = filled.items()
                values.boxes[name] = {part: part.of(array.reshape(box.shape)) for part in self._wanted[name]}
            else:
                values.boxes[name] = filled
        return values


def check_stored(name: str, listed: Iterable[Box], stored: Sequence[StoredTensor]) -> None:
    """Makes sure that a file holds the boxes that its part list says, and no others. Raises `CorruptCheckpoint`."""
    kinds = {box.key: (box.dtype, box.stored_shape) for box in listed}
    if {tensor.key for tensor in stored} != kinds.keys():
        raise CorruptCheckpoint(name, "other tensors than its part list names")
    for tensor in stored:
        if (tensor.dtype, tensor.shape) != kinds[tensor.key]:
            raise CorruptCheckpoint(
                name, f"{tensor.key!r:.200} as {tensor.dtype}{list(tensor.shape)}, not as its part list says"
            )


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
    """
    most = memory_limit()
    if size > most:
        raise NotEnoughMemory(directory, size, most)
