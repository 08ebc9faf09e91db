"""Files of tensors in the safetensors format, streamed in both directions.

The format (https://github.com/huggingface/safetensors#format): eight bytes with the length of a header, the
header in JSON with type, shape and byte range of every tensor, then their bytes, little-endian and in C
order, without gaps. Data only: reading one can run nothing. The sum over the file is taken in the pass that
writes or reads it, and the bytes go straight from and to the tensors in memory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_preempt.checkpoint.checked_file import PIECE, Bytes, CheckedFile, extended
from keras_preempt.checkpoint.dtypes import code_of, dtype_of, name_of_code
from keras_preempt.checkpoint.errors import CorruptCheckpoint
from keras_preempt.checkpoint.manifest import FileEntry
from keras_preempt.checkpoint.storage.store import Moved, Store, uncounted
from keras_preempt.checkpoint.values import Value, elements
from keras_preempt.process.json_fields import loads

LARGEST_HEADER = 100_000_000
"""Bytes; the limit of the safetensors library too."""

_LENGTH_SIZE = 8  # bytes before the header, which say how long it is

Array = np.ndarray[Any, np.dtype[Any]]

ALIGNMENT = 64
"""Bytes; TensorFlow takes over memory that is aligned so, and would have to copy any other."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: its key, NumPy type name, shape, and first byte after the header."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    begin: int


def parse_header(header: bytes, data_size: int, file: str) -> list[StoredTensor]:
    """Returns the tensors that a header names, in the order of their bytes; `data_size` bytes follow it in the file.

    Raises `CorruptCheckpoint` if it is not that of such a file: bytes outside the file, overlaps, gaps, an unknown
    type, a shape that does not fit the byte range.
    """
    try:
        fields = loads(header)
    except ValueError as error:
        raise CorruptCheckpoint(file, f"no readable header ({error!s:.200})") from error
    if not isinstance(fields, dict):
        raise CorruptCheckpoint(file, "a header that is no object")
    fields.pop("__metadata__", None)
    tensors = []
    ranges = []
    for key, field in fields.items():
        try:
            tensor, end = _parse_tensor(key, field)
        except ValueError as error:
            raise CorruptCheckpoint(file, f"{key!r:.200} in the header is wrong: {error}") from error
        tensors.append(tensor)
        ranges.append((tensor.begin, end))
    expected = 0
    for begin, end in sorted(ranges):
        if begin != expected:
            raise CorruptCheckpoint(
                file, f"{'a gap' if begin > expected else 'an overlap'} at byte {expected}"
            )
        expected = end
    if expected != data_size:
        raise CorruptCheckpoint(file, f"tensors of {expected} bytes in a file with {data_size}")
    # An empty tensor comes before the one whose first byte has the same number.
    return sorted(tensors, key=lambda tensor: (tensor.begin, 0 not in tensor.shape))


def _parse_tensor(key: str, field: Any) -> tuple[StoredTensor, int]:
    if not isinstance(field, dict) or field.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError("it needs exactly dtype, shape and data_offsets")
    dtype = name_of_code(field["dtype"])
    if dtype is None:
        raise ValueError(f"unknown element type {field['dtype']!r:.50}")
    shape, offsets = field["shape"], field["data_offsets"]
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise ValueError("shape and data_offsets are lists of whole numbers")
    spec = Value(key, dtype, tuple(shape))
    begin, end = offsets
    if end - begin != spec.nbytes:
        raise ValueError(f"{end - begin} bytes for a {dtype} tensor of shape {shape!r:.100}")
    return StoredTensor(key, dtype, spec.shape, begin), end


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


Places = Callable[[Sequence[StoredTensor]], Mapping[str, Array]]
"""Says where to put the tensors that a header names, by key: contiguous arrays of their types and sizes."""


def empty(dtype: str, shape: tuple[int, ...]) -> Array:
    """Returns an aligned array in C order with arbitrary content; its memory is taken when it is filled."""
    element = dtype_of(dtype)
    size = elements(shape) * element.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(element).reshape(shape)


def new_places(stored: Sequence[StoredTensor]) -> dict[str, Array]:
    """Gives every tensor an array of its own; see `Places`."""
    return {tensor.key: empty(tensor.dtype, tensor.shape) for tensor in stored}


def write_tensors(
    store: Store, directory: str, file: str, tensors: Mapping[str, Array], moved: Moved = uncounted
) -> FileEntry:
    """Writes a file of tensors, by key; arrays are not copied, unless they are not contiguous.

    It is durable when this returns; in a block of `Store.overlapped`, when that ends. Raises like `stream`, and
    `AlreadyExists` or `StoreUnavailable`.
    """
    size = crc = 0
    chunks = stream(tensors)
    with store.writer(f"{directory}/{file}", moved) as out:
        for chunk in chunks:
            crc = extended(crc, chunk)
            size += len(chunk)
            out.write(chunk.data)
    return FileEntry(file, size, crc)


def stream(tensors: Mapping[str, Array]) -> Iterator[Bytes]:
    """Returns the bytes of a safetensors file, piece by piece; arrays are not copied, unless they are not contiguous.

    Raises `ValueError` before the first piece for an element type that a checkpoint cannot hold, or the key
    '__metadata__'.
    """
    if "__metadata__" in tensors:
        raise ValueError(
            "Expected tensors under names of their own. Received: '__metadata__', which the file format "
            "reserves. Rename the tensor."
        )
    # Largest elements first, so that every tensor is aligned to its element size in the file.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    fields = {}
    end = 0
    for key, array in ordered:
        begin, end = end, end + array.nbytes
        fields[key] = {
            "dtype": code_of(array.dtype.name),
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
    header = json.dumps(fields, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    if len(header) > LARGEST_HEADER:
        raise ValueError(
            f"Expected names and shapes of up to {LARGEST_HEADER} bytes in one file. Received: {len(header)} "
            "bytes. Shorten the names of the variables."
        )

    def chunks() -> Iterator[Bytes]:
        yield np.frombuffer(len(header).to_bytes(8, "little") + header, np.uint8)
        for _, array in ordered:
            little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
            flat = little.reshape(-1).view(np.uint8)
            for start in range(0, len(flat), PIECE):
                yield flat[start : start + PIECE]

    return chunks()


class Filling:
    """A file of tensors that arrives at where its tensors belong.

    Its buffers, one after the other, are the bytes of the file. Each has to be filled before the next is asked for:
    what it holds says what follows. `places` is called before anything but the header is there, and raises if it
    refuses the tensors.

    Attributes:
        tensors: The tensors by key, complete when there are no more buffers.
        buffers: The buffers so far.
    """

    def __init__(self, name: str, size: int, places: Places) -> None:
        self.tensors: dict[str, Array] = {}
        self.buffers: list[Bytes] = []
        self._name = name
        self._size = size
        self._places = places

    def __iter__(self) -> Iterator[Bytes]:
        """Yields the buffers; raises `CorruptCheckpoint` if what they hold is no valid safetensors file."""
        for buffer in self._fill():
            self.buffers.append(buffer)
            yield buffer

    def _fill(self) -> Iterator[Bytes]:
        stored = yield from _read_header(self._name, self._size)
        targets = self._places(stored)
        for tensor in stored:
            target = targets[tensor.key]
            flat = target.reshape(-1).view(np.uint8)
            yield flat
            _check_values(self._name, tensor, flat)
            if sys.byteorder == "big":
                target[...] = target.view(target.dtype.newbyteorder("<"))
        self.tensors = {tensor.key: targets[tensor.key] for tensor in stored}


def _read_header(name: str, size: int) -> Generator[Bytes, None, list[StoredTensor]]:
    """Yields the buffers for what a file of so many bytes begins with; returns its tensors, as `parse_header` does."""
    if size < _LENGTH_SIZE:
        raise CorruptCheckpoint(name, f"an end after {size} bytes")
    prefix = np.empty(_LENGTH_SIZE, np.uint8)
    yield prefix
    length, left = int.from_bytes(prefix.tobytes(), "little"), size - _LENGTH_SIZE
    if length > min(LARGEST_HEADER, left):
        raise CorruptCheckpoint(name, f"a header of {length} bytes in a file of {size}")
    header = np.empty(length, np.uint8)
    yield header
    return parse_header(header.tobytes(), left - length, name)


def _check_values(name: str, tensor: StoredTensor, values: Bytes) -> None:
    if tensor.dtype == "bool" and np.any(values > 1):
        raise CorruptCheckpoint(name, f"a boolean that is neither 0 nor 1 in {tensor.key!r:.200}")


def read_to_places(file: CheckedFile, places: Places) -> Filling:
    """Reads a file of tensors, whose size was checked, to where they belong, and verifies it; see `Filling`."""
    filling = Filling(file.name, file.entry.size, places)
    with file:
        for buffer in filling:
            file.read_into(buffer)
        file.finish()
    return filling


def verify_file(
    store: Store,
    directory: str,
    entry: FileEntry,
    moved: Moved = uncounted,
    check: Callable[[Sequence[StoredTensor]], object] = lambda stored: None,
) -> None:
    """Reads a file and makes sure that it can be restored, without memory for its tensors.

    `check` is given the tensors that the header names, and raises if these are not what was listed.
    """
    file = CheckedFile(store, directory, entry, moved)
    file.check_size()
    with file:
        stored = _filled(file, _read_header(file.name, entry.size))
        check(stored)
        buffer = np.empty(min(PIECE, entry.size - file.taken), np.uint8)
        for tensor in stored:
            left = Value(tensor.key, tensor.dtype, tensor.shape).nbytes
            while left:
                piece = buffer[:left]
                file.read_into(piece)
                _check_values(file.name, tensor, piece)
                left -= len(piece)
        file.finish()


def _filled(file: CheckedFile, buffers: Generator[Bytes, None, list[StoredTensor]]) -> list[StoredTensor]:
    """Fills buffers with what comes next in a file; returns what they return."""
    while True:
        try:
            file.read_into(next(buffers))
        except StopIteration as over:
            stored: list[StoredTensor] = over.value
            return stored
