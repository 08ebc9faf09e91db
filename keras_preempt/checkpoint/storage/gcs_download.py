"""How an object of a bucket is read: one generation of it, whole, and compared with its sum.

The client compares sums only for what it reads in one request. Large objects are read in ranges, several at a
time, so the comparison is made here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Executor
from io import BytesIO
from typing import IO

import google_crc32c
from google.api_core import exceptions as api

from keras_preempt.checkpoint.errors import CorruptCheckpoint, NotFound, StoreUnavailable
from keras_preempt.checkpoint.storage import gcs_errors
from keras_preempt.checkpoint.storage.budget import Budget
from keras_preempt.checkpoint.storage.gcs_client import GcsBucket, ObjectInfo
from keras_preempt.checkpoint.storage.transfers import Moved, uncounted

_ATTEMPTS = 3  # times that an object is read until its sum is right
_PIECE = 1 << 20  # bytes


def get(
    bucket: GcsBucket,
    info: ObjectInfo,
    file: IO[bytes],
    ranges: Iterable[tuple[int, int]],
    pool: Executor,
    budget: Budget,
    moved: Moved = uncounted,
) -> None:
    """Reads one generation of an object into an empty file, in ranges, as many at a time as the pool has threads.

    `moved` is told of each range when it is there.

    Raises:
        NotFound: that generation is no longer there.
        CorruptCheckpoint: what arrives is again and again not what is stored.
    """
    ranges = list(ranges)
    for _ in range(_ATTEMPTS):
        futures = [pool.submit(_copy_range, bucket, info, file, *each, budget, moved) for each in ranges]
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
        if info.crc32c is None or _sum_of(file, info.size) == info.crc32c:
            return
        moved(-info.size)
    raise CorruptCheckpoint(info.name, f"{_ATTEMPTS} downloads with other sums than the stored object")


def _copy_range(
    bucket: GcsBucket,
    info: ObjectInfo,
    file: IO[bytes],
    start: int,
    stop: int,
    budget: Budget,
    moved: Moved,
) -> None:
    size = stop - start
    with bucket.explained(f"read {info.name!r}"):
        rest = memoryview(_range(bucket, info, start, stop, budget))
        while rest:
            written = os.pwrite(file.fileno(), rest, start)
            rest, start = rest[written:], start + written
    moved(size)


def get_bytes(bucket: GcsBucket, info: ObjectInfo, budget: Budget) -> bytes:
    """Reads one generation of a small object; raises like `get`."""
    for _ in range(_ATTEMPTS):
        with bucket.explained(f"read {info.name!r}"):
            data = _range(bucket, info, 0, info.size, budget) if info.size else b""
        if info.crc32c is None or google_crc32c.value(data) == info.crc32c:
            return data
    raise CorruptCheckpoint(info.name, f"{_ATTEMPTS} downloads with other sums than the stored object")


def _range(bucket: GcsBucket, info: ObjectInfo, start: int, stop: int, budget: Budget) -> bytes:
    blob = bucket.blob(info.name, generation=info.generation)
    while True:
        stream = BytesIO()
        try:
            # As it is stored, in one read; the sum is taken over the whole, by us.
            blob.download_to_file(
                stream,
                start=start,
                end=stop - 1,
                raw_download=True,
                checksum=None,
                single_shot_download=True,
                timeout=budget.timeout(),
                retry=budget.retry(),
            )
        except api.NotFound as error:
            if gcs_errors.is_missing_bucket(error):
                raise
            raise NotFound(info.name, bucket.url) from error
        if stream.tell() == stop - start:
            return stream.getvalue()
        if not budget.left:
            raise StoreUnavailable(
                f"Expected bytes {start} to {stop} of {info.name!r} from {bucket.url}. Received: "
                f"{stream.tell()} bytes, again and again. Check the network on the way to {bucket.endpoint}."
            )


def _sum_of(file: IO[bytes], size: int) -> int:
    crc = 0
    for start in range(0, size, _PIECE):
        crc = google_crc32c.extend(crc, os.pread(file.fileno(), min(_PIECE, size - start), start))
    return int(crc)
