"""Uploads and downloads of whole objects, verified by their sums, over several connections.

One stream to a bucket is slower than most networks, and each request costs a moment and a fraction of a cent. So
there are as many files and ranges as connections, or a small multiple, as long as none becomes tiny.

Uploads. The one condition, that the name is free, makes an upload safe to repeat, and makes a repeated one
fail on what the first has already stored. So each upload carries a token of its own, by which it recognizes its
object. An upload is given up only when its time is up, and then in one of two ways. Either every try was answered and
nothing is stored: it has failed. Or a try had no answer, and the service may still carry it out: it is uncertain, and
the caller must not act as if it had failed.

Downloads. The client compares sums only for what it reads in one request. Large objects are read in ranges, several at
a time, so the comparison is made here.
"""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Iterator
from io import BytesIO
from typing import IO

import google_crc32c
import requests
from google.api_core import exceptions as api

from keras_preempt.checkpoint.errors import (
    AlreadyExists,
    CorruptCheckpoint,
    NotFound,
    StoreUnavailable,
    WriteUncertain,
)
from keras_preempt.checkpoint.storage import gcs_errors
from keras_preempt.checkpoint.storage.budget import Budget
from keras_preempt.checkpoint.storage.gcs_client import GcsBucket, ObjectInfo, info_of
from keras_preempt.checkpoint.storage.posix_files import write_all
from keras_preempt.checkpoint.storage.store import Moved, uncounted
from keras_preempt.process.threads import Pool

SMALLEST_FILE = (8 << 20) - (256 << 10)
"""Bytes of a file that is worth a request of its own; with its header it still goes up in one request."""

LARGEST_FILE = 64 << 20  # Bytes of a file; what a failed upload may have to send again.

_SMALLEST_SHARE = 2 << 20  # bytes of a file, if there are fewer than `SMALLEST_FILE` for each connection
_WAVES = 4  # files that each connection sends one after the other, so that all end at about the same time
_ROUNDING = 64  # bytes; a file ends with a whole element, and what is left over must not make a further file

_SMALLEST_RANGE, _LARGEST_RANGE = 4 << 20, 16 << 20  # bytes

CHUNK = 16 << 20  # Bytes of one request of an upload.

_SMALL_CHUNK = 8 << 20  # bytes, when time is short: less is sent again after a failure
_SHORT = 30.0  # seconds that are a short time
_ONE_REQUEST = 8 << 20  # bytes; the client uploads a smaller object in one request
_TOKEN = "keras-preempt-token"
_UPLOADS = 5  # times that an upload is begun, when the service refuses it as damaged or forgets about it
_LOOKING = 2.0  # seconds of a budget for finding out whether a write took effect; the rest is for writing
_LOOKING_SHARE = 0.2  # of a short budget
_DOWNLOADS = 3  # times that an object is read until its sum is right
_PIECE = 1 << 20  # bytes


def file_size(total: int, connections: int) -> int:
    """Returns how many bytes each file should have at most when `total` bytes are written; at least 1."""
    each = total // connections
    if each < SMALLEST_FILE:
        files = min(max(total // _SMALLEST_SHARE, 1), connections)
    else:
        files = connections * min(each // SMALLEST_FILE, _WAVES)
    size = -(-total // files)
    return min(size + -size % _ROUNDING + _ROUNDING, LARGEST_FILE)


def ranges_of(size: int, connections: int) -> Iterator[tuple[int, int]]:
    """Returns the ranges, first byte and byte after the last one, in which a file of `size` bytes is read."""
    count = max(min(size // _SMALLEST_RANGE, connections), -(-size // _LARGEST_RANGE), 1)
    for index in range(count):
        yield size * index // count, size * (index + 1) // count


def put(
    bucket: GcsBucket,
    name: str,
    content: IO[bytes],
    size: int,
    crc32c: int,
    budget: Budget,
    moved: Moved = uncounted,
) -> ObjectInfo:
    """Creates an object from all of `content`; `moved` is called after each request that succeeded.

    Raises `AlreadyExists` if the name is taken, `WriteUncertain` if it is not known whether the object is stored or
    will be, and `StoreUnavailable` if it was not stored.
    """
    return _Put(bucket, name, size, crc32c, budget).run(_Sending(content, moved))


class _Put:
    """The upload of one object, with as many tries as it takes."""

    def __init__(self, bucket: GcsBucket, name: str, size: int, crc32c: int, budget: Budget) -> None:
        self._bucket = bucket
        self._name = name
        self._size = size
        self._crc32c = crc32c
        self._budget = budget
        self._token = secrets.token_hex(16)
        # Whether a try may have taken effect; and whether one may still, since it had no answer.
        self._perhaps_stored = self._in_flight = False

    def run(self, sending: _Sending) -> ObjectInfo:
        pauses = self._budget.pauses()
        for attempt in range(1, _UPLOADS + 1):
            held_back = min(_LOOKING, _LOOKING_SHARE * self._budget.left)
            writing = self._budget.ending_before(held_back)
            try:
                info = self._upload(sending, writing)
                break
            except gcs_errors.FAILURES as error:
                self._note(error)
                if attempt < _UPLOADS and writing.left and _is_worth_another_upload(error, self._size):
                    continue
                found = self._look(error)
                if found is not None:
                    info = found
                    break
                # Nothing is there. A 412 says otherwise, and is no answer to rely on; after an outage, the service
                # has just answered again.
                again = _is_refused(error) or gcs_errors.is_passing(error)
                if not again or attempt == _UPLOADS or not next(pauses, False):
                    why = self._bucket.unavailable(error, f"create {self._name!r}")
                    if self._in_flight:
                        why = WriteUncertain(
                            f"{why} It is not there now, but a request that was not answered may still be carried "
                            "out, so it is not known whether it will be stored."
                        )
                    raise why from error
        sending.reached(self._size)
        return info

    def _upload(self, content: _Sending, budget: Budget) -> ObjectInfo:
        chunk = _SMALL_CHUNK if budget.left < _SHORT else CHUNK
        blob = self._bucket.blob(self._name, chunk_size=chunk)
        blob.metadata = {_TOKEN: self._token}
        # Sent ahead, so that the service can refuse the object.
        blob.crc32c = base64.b64encode(self._crc32c.to_bytes(4, "big")).decode()
        payload = min(self._size, max(chunk, _ONE_REQUEST))
        try:
            blob.upload_from_file(
                content,
                rewind=True,
                size=self._size,
                content_type="application/octet-stream",
                if_generation_match=0,
                checksum="crc32c",
                timeout=budget.timeout(payload),
                retry=budget.retry(payload, self._note),
            )
        except requests.JSONDecodeError as error:
            raise gcs_errors.OddAnswer.of(error) from error
        if blob.generation is None:
            raise gcs_errors.EmptyAnswer("an answer without the generation of the object")
        return ObjectInfo(self._name, self._size, int(blob.generation), self._crc32c)

    def _note(self, error: BaseException) -> None:
        self._perhaps_stored = self._perhaps_stored or gcs_errors.may_have_happened(error)
        self._in_flight = self._in_flight or gcs_errors.may_still_happen(error)

    def _look(self, failure: BaseException) -> ObjectInfo | None:
        """Returns the object if this very call has stored it; None if there is no such object."""
        if not (self._perhaps_stored or _is_refused(failure)):
            return None
        try:
            blob = self._bucket.reload(self._name, self._budget)
            with self._bucket.explained(f"read {self._name!r}"):
                info = None if blob is None else info_of(blob)
        except StoreUnavailable as error:
            why = self._bucket.unavailable(failure, f"create {self._name!r}")
            raise WriteUncertain(
                f"{why} Nor can it be read, so it is not known whether it is stored."
            ) from error
        if info is None:
            return None
        token = (blob.metadata or {}).get(_TOKEN)
        if (token, info.size, info.crc32c) != (self._token, self._size, self._crc32c):
            raise AlreadyExists(self._bucket.place.file_of(self._name), self._bucket.url)
        return info


class _Sending:
    """The content of an upload; the client reads each request's part of it once the part before has arrived."""

    def __init__(self, content: IO[bytes], moved: Moved) -> None:
        self._content = content
        self._moved = moved
        self._arrived = 0
        self.tell, self.seek = content.tell, content.seek

    def read(self, size: int = -1) -> bytes:
        self.reached(self._content.tell())
        return self._content.read(size)

    def reached(self, position: int) -> None:
        """Reports that all before `position` has arrived, and nothing after it."""
        if position != self._arrived:
            self._moved(position - self._arrived)
            self._arrived = position


def _is_refused(error: BaseException) -> bool:
    """Whether the service says that the object exists: another writer's, or ours of an earlier try."""
    return isinstance(error, api.PreconditionFailed) and not gcs_errors.is_policy(error)


def _is_worth_another_upload(error: BaseException, size: int) -> bool:
    """Whether an upload failed of itself: damaged on the way, or its session is gone."""
    status = gcs_errors.status_of(gcs_errors.cause_of(error))
    if status in (404, 410):
        return size > _ONE_REQUEST and not gcs_errors.is_missing_bucket(error)
    text = str(error).lower()
    return status in (None, 400) and ("crc32c" in text or "checksum" in text)


def get(
    bucket: GcsBucket,
    info: ObjectInfo,
    file: IO[bytes],
    pool: Pool,
    connections: int,
    budget: Budget,
    moved: Moved = uncounted,
) -> None:
    """Reads one generation of an object into an empty file, in ranges, as many at a time as there are connections.

    Raises `NotFound` if that generation is gone, and `CorruptCheckpoint` if every download differs from what is stored.
    """

    def copy(start: int, stop: int) -> None:
        with bucket.explained(f"read {info.name!r}"):
            write_all(file.fileno(), _range(bucket, info, start, stop, budget), start)
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
    raise CorruptCheckpoint(info.name, f"{_DOWNLOADS} downloads with other sums than the stored object")


def get_bytes(bucket: GcsBucket, info: ObjectInfo, budget: Budget) -> bytes:
    """Reads one generation of a small object; raises like `get`."""
    for _ in range(_DOWNLOADS):
        with bucket.explained(f"read {info.name!r}"):
            data = _range(bucket, info, 0, info.size, budget) if info.size else b""
        if info.crc32c is None or google_crc32c.value(data) == info.crc32c:
            return data
    raise CorruptCheckpoint(info.name, f"{_DOWNLOADS} downloads with other sums than the stored object")


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
            raise NotFound(bucket.place.file_of(info.name), bucket.url) from error
        if stream.tell() == stop - start:
            return stream.getvalue()
        if not budget.left:
            raise StoreUnavailable(
                f"Expected bytes {start} to {stop} of {info.name!r} from {bucket.url}. Received: "
                f"{stream.tell()} bytes, again and again. Check the network on the way to {bucket.endpoint}."
            )
