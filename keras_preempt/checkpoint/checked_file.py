"""A listed file, read from beginning to end and verified on the way."""

from __future__ import annotations

from io import RawIOBase
from typing import Any, cast

import google_crc32c
import numpy as np

from keras_preempt.checkpoint.errors import CorruptCheckpoint, NotFound
from keras_preempt.checkpoint.manifest import FileEntry
from keras_preempt.checkpoint.storage.store import Moved, Store, uncounted

PIECE = 1 << 20
"""Bytes that stay in the processor's cache between being copied and being summed."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def extended(crc32c: int, data: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
    """Returns the sum of the bytes so far, 0 at the beginning, and of contiguous `data` after them."""
    # The library takes an array where it is, but no memoryview, of which a copy would have to be made.
    # In pieces, because no other Python thread runs while the library sums up an array.
    for start in range(0, len(data), PIECE):
        crc32c = google_crc32c.extend(crc32c, data[start : start + PIECE])
    return crc32c


class CheckedFile:
    """Reads a file of an attempt and makes sure that its bytes are what was written, or raises `CorruptCheckpoint`.

    `moved` is called with how many more bytes have come from the store.
    """

    def __init__(self, store: Store, directory: str, entry: FileEntry, moved: Moved = uncounted) -> None:
        self.name = f"{directory}/{entry.name}"
        self.entry = entry
        self.taken = 0
        self._store = store
        self._moved = moved
        self._crc = 0
        self._stream: RawIOBase

    def check_size(self) -> None:
        """Makes sure that the file has the listed size: before memory is taken for what is in it."""
        try:
            size = self._store.stat(self.name).size
        except NotFound as error:
            raise CorruptCheckpoint(self.name, "no file of that name") from error
        if size != self.entry.size:
            raise CorruptCheckpoint(self.name, f"{size} bytes instead of {self.entry.size}")

    def __enter__(self) -> CheckedFile:
        try:
            self._stream = cast(RawIOBase, self._store.open(self.name, self._moved))
        except NotFound as error:
            raise CorruptCheckpoint(self.name, "no file of that name") from error
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.close()

    def read_into(self, target: Bytes) -> None:
        """Fills `target` with the next bytes."""
        for start in range(0, len(target), PIECE):
            piece = target[start : start + PIECE]
            filled = 0
            while filled < len(piece):
                count = self._stream.readinto(piece[filled:].data)
                if not count:
                    raise CorruptCheckpoint(self.name, f"an end after {self.taken + filled} bytes")
                filled += count
            self._crc = extended(self._crc, piece)
            self.taken += len(piece)

    def finish(self) -> None:
        """Makes sure that the file ends here and has the listed sum."""
        if self._stream.read(1):
            raise CorruptCheckpoint(self.name, f"more than {self.entry.size} bytes")
        if self._crc != self.entry.crc32c:
            raise CorruptCheckpoint(self.name, "another crc32c than when it was written")
