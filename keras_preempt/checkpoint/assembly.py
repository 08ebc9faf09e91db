"""How tensors that were cut over many files are put together: each piece is read to where it belongs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from keras_preempt.checkpoint.errors import CorruptCheckpoint
from keras_preempt.checkpoint.manifest import FileEntry, Part
from keras_preempt.checkpoint.partition import Slice, elements
from keras_preempt.checkpoint.tensor_header import StoredTensor
from keras_preempt.checkpoint.tensors import Array, Places, empty


class Assembly:
    """The mirrored tensors of a checkpoint, and which bytes of them lie in which file.

    Args:
        directory: the attempt's folder, for messages.
        parts: the parts of the writers; their slices make up every tensor exactly once.

    Attributes:
        files: the files that hold mirrored tensors, each with what says where its content belongs, and raises
            `CorruptCheckpoint` if that is not what its part list says.
        tensors: the tensors by name; filled as the files are read.
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
        """Takes the memory for all tensors; first, the sizes of all files must have been checked."""
        for slice_ in self._slices:
            if slice_.tensor not in self.tensors:
                self.tensors[slice_.tensor] = empty(slice_.dtype, slice_.shape)

    def _places(
        self, file: str, wanted: Mapping[str, Slice], stored: Sequence[StoredTensor]
    ) -> Mapping[str, Array]:
        name = f"{self._directory}/{file}"
        if {tensor.key for tensor in stored} != wanted.keys():
            raise CorruptCheckpoint(name, "other tensors than its part list names")
        for tensor in stored:
            slice_ = wanted[tensor.key]
            if (tensor.dtype, tensor.shape) != (slice_.dtype, slice_.stored_shape):
                raise CorruptCheckpoint(
                    name,
                    f"{tensor.key!r:.200} as {tensor.dtype}{list(tensor.shape)}, not as its part list says",
                )
        return {key: self._place(slice_) for key, slice_ in wanted.items()}

    def _place(self, slice_: Slice) -> Array:
        return self.tensors[slice_.tensor].reshape(elements(slice_.shape))[slice_.start : slice_.stop]
