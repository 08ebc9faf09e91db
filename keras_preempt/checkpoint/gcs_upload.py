"""How an object of a bucket is made: once, whole, and with its sum sent ahead.

The one condition, that nothing of that name exists, makes an upload safe to repeat, and makes a repeated one fail
on what the first has already stored. Each upload is therefore marked with a token of its own, by which what is
stored is known to be ours.
"""

from __future__ import annotations

import base64
import secrets
from typing import IO

from google.api_core import exceptions as api

from keras_preempt.checkpoint import gcs_errors
from keras_preempt.checkpoint.budget import Budget
from keras_preempt.checkpoint.errors import AlreadyExists, StoreUnavailable
from keras_preempt.checkpoint.gcs_client import GcsBucket, ObjectInfo, info_of
from keras_preempt.checkpoint.transfers import Moved, uncounted

CHUNK = 16 << 20
"""Bytes of one request of an upload."""

_SMALL_CHUNK = 8 << 20  # bytes, when time is short: less is sent again after a failure
_SHORT = 30.0  # seconds that are a short time
_ONE_REQUEST = 8 << 20  # bytes; the client uploads a smaller object in one request
_TOKEN = "keras-preempt-token"
_ATTEMPTS = 5  # times that an upload is begun, when the service refuses it as damaged or forgets about it
_WRITING = 0.8  # share of a budget for writing; the rest is for finding out whether it took effect


def put(
    bucket: GcsBucket,
    name: str,
    content: IO[bytes],
    size: int,
    crc32c: int,
    budget: Budget,
    moved: Moved = uncounted,
) -> ObjectInfo:
    """Creates an object of what `content` holds from its beginning on; `moved` is told of each request that went well.

    Raises:
        AlreadyExists: there is one of that name.
        StoreUnavailable: it was not stored, or, as the message then says, it is not known whether it was.
    """
    token = secrets.token_hex(16)
    writing = budget.share(_WRITING)
    sending = _Sending(content, moved)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            info = _upload(bucket, name, sending, size, crc32c, token, writing)
            sending.reached(size)
            return info
        except api.PreconditionFailed:
            # Also the answer to our own request, when it took effect and its first answer was lost.
            own = _own(bucket, name, size, crc32c, token, budget)
            if own is None:
                raise AlreadyExists(name, bucket.url) from None
            sending.reached(size)
            return own
        except gcs_errors.FAILURES as error:
            again = _is_worth_another_upload(error, size) and writing.left
            if again and attempt < _ATTEMPTS:
                continue
            if gcs_errors.is_uncertain(error):
                own = _own_after_failure(bucket, name, size, crc32c, token, budget, error)
                if own is not None:
                    sending.reached(size)
                    return own
            raise bucket.unavailable(error, f"create {name!r}") from error
    raise AssertionError("the last attempt returns or raises")


class _Sending:
    """What the client reads an object from, request by request: it asks for more when the last one has arrived."""

    def __init__(self, content: IO[bytes], moved: Moved) -> None:
        self._content = content
        self._moved = moved
        self._told = 0
        self.tell, self.seek = content.tell, content.seek

    def read(self, size: int = -1) -> bytes:
        """Returns what the next request is to send."""
        self.reached(self._content.tell())
        return self._content.read(size)

    def reached(self, position: int) -> None:
        """Tells that all before `position` has arrived, and nothing behind it."""
        if position != self._told:
            self._moved(position - self._told)
            self._told = position


def _upload(
    bucket: GcsBucket, name: str, content: _Sending, size: int, crc32c: int, token: str, budget: Budget
) -> ObjectInfo:
    chunk = _SMALL_CHUNK if budget.left < _SHORT else CHUNK
    blob = bucket.blob(name, chunk_size=chunk)
    blob.metadata = {_TOKEN: token}
    blob.crc32c = _encoded(crc32c)  # sent ahead, so that the service can refuse the object
    payload = min(size, max(chunk, _ONE_REQUEST))
    blob.upload_from_file(
        content,
        rewind=True,
        size=size,
        content_type="application/octet-stream",
        if_generation_match=0,
        checksum="crc32c",
        timeout=budget.timeout(payload),
        retry=budget.retry(payload),
    )
    return ObjectInfo(name, size, int(blob.generation), crc32c)


def _own(
    bucket: GcsBucket, name: str, size: int, crc32c: int, token: str, budget: Budget
) -> ObjectInfo | None:
    """Returns what is stored under a name if this very call has stored it."""
    blob = bucket.reload(name, budget)
    if blob is None or (blob.metadata or {}).get(_TOKEN) != token:
        return None
    info = info_of(blob)
    return info if (info.size, info.crc32c) == (size, crc32c) else None


def _own_after_failure(
    bucket: GcsBucket, name: str, size: int, crc32c: int, token: str, budget: Budget, failure: BaseException
) -> ObjectInfo | None:
    try:
        return _own(bucket, name, size, crc32c, token, budget)
    except StoreUnavailable:
        raise StoreUnavailable(
            f"{bucket.unavailable(failure, f'create {name!r}')} Nor can it be read, so it is not known "
            "whether it is stored."
        ) from failure


def _encoded(crc32c: int) -> str:
    return base64.b64encode(crc32c.to_bytes(4, "big")).decode()


def _is_worth_another_upload(error: BaseException, size: int) -> bool:
    """Whether an upload failed of itself: damaged on the way, or its session is gone."""
    status = gcs_errors.status_of(gcs_errors.cause_of(error))
    if status in (404, 410):
        return size > _ONE_REQUEST and not gcs_errors.is_missing_bucket(error)
    text = str(error).lower()
    return status in (None, 400) and ("crc32c" in text or "checksum" in text)
