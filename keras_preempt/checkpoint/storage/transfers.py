"""Transfers of whole objects over several connections, whatever the service: how they are cut, and how verified.

One stream to a bucket is slower than most networks, and each request costs a moment and a fraction of a cent. So
there are as many files and ranges as connections, or a small multiple, as long as none becomes tiny.

A range of an object has no sum of its own. So the comparison is made here, over every byte of the whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO

import google_crc32c

from keras_preempt.checkpoint.errors import CorruptCheckpoint
from keras_preempt.checkpoint.storage.budget import Budget
from keras_preempt.checkpoint.storage.objects import BucketObjects, ObjectInfo
from keras_preempt.checkpoint.storage.posix_files import write_all
from keras_preempt.checkpoint.storage.store import Moved, uncounted
from keras_preempt.process.threads import Pool

LARGEST_FILE = 64 << 20  # Bytes of a file; what a failed upload may have to send again.

_SMALLEST_FILE = 2 << 20  # bytes that are worth a request of their own
_GOOD_FILE = 3 << 20  # Bytes of a file; the last connection begins when one for each is staged.
_WAVES = 4  # files that each connection sends one after the other, so that all end at about the same time
_ROUNDING = 64  # bytes; a file ends with a whole element, and what is left over must not make a further file

_SMALLEST_RANGE, _LARGEST_RANGE = 4 << 20, 16 << 20  # bytes

_DOWNLOADS = 3  # times that an object is read until its sum is right
_PIECE = 1 << 20  # bytes


def file_size(total: int, connections: int) -> int:
    """Returns how many bytes each file should have at most when `total` bytes are written; at least 1."""
    each = total // connections
    if each < _SMALLEST_FILE:
        files = max(total // _SMALLEST_FILE, 1)
    else:
        files = connections * min(-(-each // _GOOD_FILE), _WAVES)
    size = -(-total // files)
    return min(size + -size % _ROUNDING + _ROUNDING, LARGEST_FILE)


def ranges_of(size: int, connections: int) -> Iterator[tuple[int, int]]:
    """Returns the ranges, first byte and byte after the last one, in which a file of `size` bytes is read."""
    count = max(min(size // _SMALLEST_RANGE, connections), -(-size // _LARGEST_RANGE), 1)
    for index in range(count):
        yield size * index // count, size * (index + 1) // count


def get(
    bucket: BucketObjects,
    info: ObjectInfo,
    file: IO[bytes],
    pool: Pool,
    connections: int,
    budget: Budget,
    moved: Moved = uncounted,
) -> None:
    """Reads one version of an object into an empty file, in ranges, as many at a time as there are connections.

    Raises `NotFound` if that version is gone, and `CorruptCheckpoint` if every download differs from what is stored.
    """

    def copy(start: int, stop: int) -> None:
        write_all(file.fileno(), bucket.read(info, start, stop, budget), start)
        moved(stop - start)

    ranges = list(ranges_of(info.size, connections))
    for _ in range(_DOWNLOADS):
        futures = [pool.submit(copy, *each) for each in ranges]
        try:
            for future in futures:
                future.result()
        finally:
            for future in futures:
                future.cancel()
            for future in futures:
                # The file must not be written to any more, nor be closed under a thread that does.
                if not future.cancelled():
                    future.exception()
        crc = 0
        for start in range(0, 0 if info.crc32c is None else info.size, _PIECE):
            crc = google_crc32c.extend(crc, os.pread(file.fileno(), min(_PIECE, info.size - start), start))
        if info.crc32c in (None, crc):
            return
        moved(-info.size)
    raise _other_sums(info)


def get_bytes(bucket: BucketObjects, info: ObjectInfo, budget: Budget) -> bytes:
    """Reads one version of a small object; raises like `get`."""
    for _ in range(_DOWNLOADS):
        data = bucket.read(info, 0, info.size, budget) if info.size else b""
        if info.crc32c is None or google_crc32c.value(data) == info.crc32c:
            return data
    raise _other_sums(info)


def _other_sums(info: ObjectInfo) -> CorruptCheckpoint:
    return CorruptCheckpoint(info.name, f"{_DOWNLOADS} downloads with other sums than the stored object")
