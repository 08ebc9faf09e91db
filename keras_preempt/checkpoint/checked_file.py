"""A listed file, read from beginning to end and verified on the way."""

from __future__ import annotations

from typing import Any, Protocol, cast

import google_crc32c
import numpy as np

from keras_preempt.checkpoint.errors import CorruptCheckpoint, NotFound
from keras_preempt.checkpoint.manifest import FileEntry
from keras_preempt.checkpoint.storage.store import Moved, Store, uncounted

PIECE = 1 << 20
"""Bytes that stay in the processor's cache between being copied and being summed."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def extended(crc32c: int, data: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
    """Returns the sum of the bytes so far and of `data` after them.

    Args:
        crc32c: The sum so far; 0 at the beginning.
        data: Bytes as a contiguous array. The library takes an array where it is, but no memoryview, of which a
            copy would have to be made.
    """
    # In pieces, because no other Python thread runs while the library sums up an array.
    for start in range(0, len(data), PIECE):
        crc32c = google_crc32c.extend(crc32c, data[start : start + PIECE])
    return crc32c


class CheckedFile:
    """Reads a file of an attempt and makes sure that its bytes are what was written.

    Args:
        store: Where from.
        directory: Folder in the store.
        entry: The file, as it was listed.
        moved: Called with how many more bytes have come from the store.

    Attributes:
        name: The file in the store.
        entry: See the argument.
        taken: Bytes read so far.
    """

    def __init__(self, store: Store, directory: str, entry: FileEntry, moved: Moved = uncounted) -> None:
        self.name = f"{directory}/{entry.name}"
        self.entry = entry
        self.taken = 0
        self._store = store
        self._moved = moved
        self._crc = 0
        self._stream: _Stream

    def check_size(self) -> None:
        """Makes sure that the file has the listed size: before memory is taken for what is in it.

        Raises:
            CorruptCheckpoint: It is missing or has another size.
            StoreUnavailable: The storage failed.
        """
        try:
            size = self._store.stat(self.name).size
        except NotFound as error:
            raise CorruptCheckpoint(self.name, "no file of that name") from error
        if size != self.entry.size:
            raise CorruptCheckpoint(self.name, f"{size} bytes instead of {self.entry.size}")

    def __enter__(self) -> CheckedFile:
        try:
            self._stream = cast(_Stream, self._store.open(self.name, self._moved))
        except NotFound as error:
            raise CorruptCheckpoint(self.name, "no file of that name") from error
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.close()

    @property
    def left(self) -> int:
        """Bytes that are still to be read."""
        return self.entry.size - self.taken

    def read_into(self, target: Bytes) -> None:
        """Fills `target` with the next bytes. Raises `CorruptCheckpoint` if there are fewer."""
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
        """Makes sure that the file ends here and has the listed sum.

        Raises:
            CorruptCheckpoint: It goes on, or has another sum.
        """
        if self._stream.read(1):
            raise CorruptCheckpoint(self.name, f"more than {self.entry.size} bytes")
        if self._crc != self.entry.crc32c:
            raise CorruptCheckpoint(self.name, "another crc32c than when it was written")


class _Stream(Protocol):
    """What every store's `open` returns, which `BinaryIO` does not say."""

    def readinto(self, buffer: memoryview) -> int | None: ...

    def read(self, size: int) -> bytes: ...

    def close(self) -> None: ...
