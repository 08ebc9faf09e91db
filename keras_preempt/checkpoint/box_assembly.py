"""Sharded tensors put together in memory: whole, or only the boxes that one worker needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from keras_preempt.checkpoint.assembly import TRANSFERS, check_stored
from keras_preempt.checkpoint.boxes import Box, size_of, view
from keras_preempt.checkpoint.checked_file import CheckedFile
from keras_preempt.checkpoint.errors import CorruptCheckpoint
from keras_preempt.checkpoint.manifest import FileEntry, Part
from keras_preempt.checkpoint.tensors import Array, StoredTensor, empty, read_to_places

Wanted = Mapping[str, Sequence[Box]]
"""The boxes that a worker needs of the tensors that are divided among workers now, by the tensor's name."""


class BoxAssembly:
    """The sharded tensors of a checkpoint, as far as one worker needs them.

    Args:
        directory: The attempt's folder, for messages.
        parts: The parts of the workers that wrote pieces; they make up every tensor exactly once.
        wanted: Which boxes are needed of which tensors; every other tensor is needed whole.

    Attributes:
        files: The files that hold something that is needed.
        room: Bytes of memory that reading them takes at most.

    Raises:
        CorruptCheckpoint: A tensor is of another shape or type than the boxes that are wanted of it.
    """

    def __init__(self, directory: str, parts: Sequence[Part], wanted: Wanted) -> None:
        self._wanted = wanted
        self._stored: dict[str, dict[str, Box]] = {}
        self._needed: dict[str, Sequence[Box]] = {}
        for placed in (placed for part in parts for placed in part.sharded):
            box = placed.box
            self._stored.setdefault(placed.file, {})[box.key] = box
            if box.tensor not in self._needed:
                whole = replace(box, start=(0,) * len(box.shape), stop=box.shape)
                self._needed[box.tensor] = wanted.get(box.tensor, (whole,))
                check_like(directory, self._needed[box.tensor], box.dtype, box.shape)
        entries = [entry for part in parts for entry in part.files if entry.name in self._stored]
        self.files: list[FileEntry] = [entry for entry in entries if self._is_needed(entry)]
        # What is not read to its place is read beside it, a file at a time in each of the threads.
        beside = sorted((entry.size for entry in self.files), reverse=True)[:TRANSFERS]
        self.room = sum(map(size_of, self._needed.values())) + sum(beside)
        self._filled: dict[str, dict[Box, Array]] = {}

    @property
    def boxes(self) -> dict[str, dict[Box, Array]]:
        """The wanted boxes, by tensor; complete when all files are read."""
        return {name: filled for name, filled in self._filled.items() if name in self._wanted}

    @property
    def tensors(self) -> dict[str, Array]:
        """The tensors that are needed whole, likewise."""
        return {
            name: next(iter(filled.values()))
            for name, filled in self._filled.items()
            if name not in self._wanted
        }

    def allocate(self) -> None:
        """Takes the memory for what is needed. The sizes of all files must have been checked before."""
        for name, boxes in self._needed.items():
            self._filled[name] = {box: empty(box.dtype, box.extent) for box in boxes}

    def read(self, file: CheckedFile) -> None:
        """Reads one of `files`, and puts what is in it to where it is needed.

        Raises:
            CorruptCheckpoint: It is not what was written.
            StoreUnavailable: The storage failed.
        """
        stored = self._stored[file.entry.name]
        read = read_to_places(file, partial(self._places, file.name, stored)).tensors
        for key, box in stored.items():
            for needed, array in self._filled[box.tensor].items():
                common = box.intersection(needed)
                if common is None:
                    continue
                place = view(array, common.within(needed))
                if not np.may_share_memory(place, read[key]):  # Otherwise it was read to its place.
                    place[...] = view(read[key], common.within(box))

    def _is_needed(self, entry: FileEntry) -> bool:
        return any(
            box.meets(needed)
            for box in self._stored[entry.name].values()
            for needed in self._needed[box.tensor]
        )

    def _places(
        self, name: str, listed: Mapping[str, Box], stored: Sequence[StoredTensor]
    ) -> Mapping[str, Array]:
        check_stored(name, stored, {key: (box.dtype, box.extent) for key, box in listed.items()})
        return {key: self._place(box) for key, box in listed.items()}

    def _place(self, box: Box) -> Array:
        """Returns where to read a box to: where it is needed, if it lies there in one run of bytes; else beside."""
        for needed, array in self._filled[box.tensor].items():
            if box.intersection(needed) == box:
                place = view(array, box.within(needed))
                if place.flags.c_contiguous:
                    return place
        return empty(box.dtype, box.extent)


def cut(directory: str, whole: Array, boxes: Sequence[Box]) -> dict[Box, Array]:
    """Returns boxes of a tensor that is there as a whole; they share its memory.

    Args:
        directory: The attempt's folder, for messages.
        whole: The tensor.
        boxes: What is needed of it.

    Raises:
        CorruptCheckpoint: The tensor is of another shape or type.
    """
    check_like(directory, boxes, whole.dtype.name, whole.shape)
    return {box: view(whole, box.index) for box in boxes}


def check_like(directory: str, boxes: Iterable[Box], dtype: str, shape: tuple[int, ...]) -> None:
    """Makes sure that boxes are of a tensor of that element type and shape. Raises `CorruptCheckpoint`."""
    for box in boxes:
        if (box.dtype, box.shape) != (dtype, shape):
            raise CorruptCheckpoint(
                directory,
                f"{box.tensor!r:.200} as {dtype}{list(shape)}, not {box.dtype}{list(box.shape)} as the model has it",
            )
