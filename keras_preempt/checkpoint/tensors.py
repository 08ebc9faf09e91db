"""Files of tensors in the safetensors format, streamed in both directions.

The format (https://github.com/huggingface/safetensors#format): eight bytes with the length of a header, the
header in JSON with type, shape and byte range of every tensor, then their bytes, little-endian and in C
order, without gaps. Data only: reading one can run nothing. The sum over the file is taken in the pass that
writes or reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import google_crc32c
import numpy as np

from keras_preempt.checkpoint.dtypes import code_of, dtype_of
from keras_preempt.checkpoint.errors import CorruptCheckpoint, NotFound
from keras_preempt.checkpoint.manifest import FileEntry
from keras_preempt.checkpoint.partition import elements
from keras_preempt.checkpoint.store import Store
from keras_preempt.checkpoint.tensor_header import LARGEST_HEADER, StoredTensor, parse_header

Array = np.ndarray[Any, np.dtype[Any]]

_CHUNK = 1 << 20  # bytes; the sum wants bytes objects, and one of this size stays in the processor's cache


def write_tensors(store: Store, directory: str, file: str, tensors: Mapping[str, Array]) -> FileEntry:
    """Writes a file of tensors; it is durable when this returns.

    Args:
        store: where to.
        directory: folder in the store.
        file: plain name of the file in that folder.
        tensors: what to write, by key; more than one chunk of them is never copied, unless they are not
            contiguous.

    Returns:
        The file as it was written.

    Raises:
        ValueError: an element type that a checkpoint cannot hold, or the key '__metadata__'.
        AlreadyExists: the file exists.
        StoreUnavailable: the storage failed.
    """
    if "__metadata__" in tensors:
        raise ValueError(
            "Expected tensors under names of their own. Received: '__metadata__', which the file format "
            "reserves. Rename the tensor."
        )
    # Largest elements first, so that every tensor is aligned to its element size in the file.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    header = _header(ordered)
    size = crc = 0
    with store.writer(f"{directory}/{file}") as out:
        for chunk in _chunks(header, ordered):
            crc = google_crc32c.extend(crc, chunk)
            size += len(chunk)
            out.write(chunk)
    return FileEntry(file, size, crc)


def read_tensors(store: Store, directory: str, entry: FileEntry) -> dict[str, Array]:
    """Reads a file of tensors and makes sure that it is what was written.

    Memory is taken only for a file whose size in the store is the listed one.

    Args:
        store: where from.
        directory: folder in the store.
        entry: the file, as it was listed.

    Returns:
        The tensors by key, writable, in C order.

    Raises:
        CorruptCheckpoint: the file is missing, of another size or sum, or no valid safetensors file.
        StoreUnavailable: the storage failed.
    """
    with _Checked(store, directory, entry) as source:
        length = int.from_bytes(source.take(8), "little")
        if length > min(LARGEST_HEADER, entry.size - source.taken):
            raise CorruptCheckpoint(source.name, f"a header of {length} bytes in a file of {entry.size}")
        stored = parse_header(source.take(length), entry.size - source.taken, source.name)
        tensors = {tensor.key: _read_tensor(source, tensor) for tensor in stored}
        source.finish()
    return tensors


def verify_file(store: Store, directory: str, entry: FileEntry) -> None:
    """Reads a file and makes sure that its bytes are what was written; raises like `read_tensors`."""
    with _Checked(store, directory, entry) as source:
        while source.taken < entry.size:
            source.take(min(_CHUNK, entry.size - source.taken))
        source.finish()


class _Checked:
    """Reads a listed file from its beginning to its end, and sums it up on the way."""

    def __init__(self, store: Store, directory: str, entry: FileEntry) -> None:
        self.name = f"{directory}/{entry.name}"
        self.taken = 0
        self._store = store
        self._entry = entry
        self._crc = 0
        self._stream: BinaryIO

    def __enter__(self) -> _Checked:
        try:
            size = self._store.stat(self.name).size
            if size != self._entry.size:
                raise CorruptCheckpoint(self.name, f"{size} bytes instead of {self._entry.size}")
            self._stream = self._store.open(self.name)
        except NotFound as error:
            raise CorruptCheckpoint(self.name, "no file of that name") from error
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.close()

    def take(self, count: int) -> bytes:
        """Returns the next `count` bytes."""
        pieces = []
        missing = count
        while missing:
            piece = self._stream.read(missing)
            if not piece:
                raise CorruptCheckpoint(self.name, f"an end after {self.taken + count - missing} bytes")
            pieces.append(piece)
            missing -= len(piece)
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._crc = google_crc32c.extend(self._crc, data)
        self.taken += count
        return data

    def finish(self) -> None:
        if self._stream.read(1):
            raise CorruptCheckpoint(self.name, f"more than {self._entry.size} bytes")
        if self._crc != self._entry.crc32c:
            raise CorruptCheckpoint(self.name, "another crc32c than when it was written")


def _header(ordered: list[tuple[str, Array]]) -> bytes:
    fields = {}
    end = 0
    for key, array in ordered:
        begin, end = end, end + array.nbytes
        fields[key] = {
            "dtype": code_of(array.dtype.name),
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LARGEST_HEADER:
        raise ValueError(
            f"Expected names and shapes of up to {LARGEST_HEADER} bytes in one file. Received: {len(text)} "
            "bytes. Shorten the names of the variables."
        )
    return len(text).to_bytes(8, "little") + text


def _chunks(header: bytes, ordered: list[tuple[str, Array]]) -> Iterator[bytes]:
    yield header
    for _, array in ordered:
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        view = little.reshape(-1).view(np.uint8).data
        for start in range(0, len(view), _CHUNK):
            yield bytes(view[start : start + _CHUNK])


def _read_tensor(source: _Checked, tensor: StoredTensor) -> Array:
    dtype = dtype_of(tensor.dtype)
    flat = np.empty(elements(tensor.shape), dtype.newbyteorder("<"))
    view = flat.view(np.uint8).data
    for start in range(0, len(view), _CHUNK):
        stop = min(start + _CHUNK, len(view))
        view[start:stop] = source.take(stop - start)
    if tensor.dtype == "bool" and flat.size and int(flat.view(np.uint8).max()) > 1:
        raise CorruptCheckpoint(source.name, f"a boolean that is neither 0 nor 1 in {tensor.key!r}")
    return flat.astype(dtype, copy=False).reshape(tensor.shape)
