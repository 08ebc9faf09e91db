"""Uploads of whole objects to Google Cloud Storage, and downloads of ranges.

The one condition, that the name is free, makes an upload safe to repeat, and makes a repeated one
fail on what the first has already stored. So each upload carries a token of its own, by which it recognizes its
object. An upload is given up only when its time is up, and then in one of two ways. Either every try was answered and
nothing is stored: it has failed. Or a try had no answer, and the service may still carry it out: it is uncertain, and
the caller must not act as if it had failed.
"""

from __future__ import annotations

import base64
import secrets
from io import BytesIO
from typing import IO

import requests
from google.api_core import exceptions as api

from keras_preempt.checkpoint.errors import AlreadyExists, NotFound, StoreUnavailable, WriteUncertain
from keras_preempt.checkpoint.storage import gcs_errors
from keras_preempt.checkpoint.storage.budget import Budget
from keras_preempt.checkpoint.storage.gcs_client import GcsBucket, info_of
from keras_preempt.checkpoint.storage.gcs_retry import retry_within
from keras_preempt.checkpoint.storage.objects import ObjectContent, ObjectInfo
from keras_preempt.checkpoint.storage.store import Moved

CHUNK = 16 << 20  # Bytes of one request of an upload.

_SMALL_CHUNK = 8 << 20  # bytes, when time is short: less is sent again after a failure
_SHORT = 30.0  # seconds that are a short time
_ONE_REQUEST = 8 << 20  # bytes; the client uploads a smaller object in one request
_TOKEN = "keras-preempt-token"
_UPLOADS = 5  # times that an upload is begun, when the service refuses it as damaged or forgets about it
_LOOKING = 2.0  # seconds of a budget for finding out whether a write took effect; the rest is for writing
_LOOKING_SHARE = 0.2  # of a short budget


class GcsObjects(GcsBucket):
    """The same bucket, with what moves the bytes of its objects."""

    def put(self, name: str, content: ObjectContent, budget: Budget, moved: Moved) -> ObjectInfo:
        """Creates an object; `moved` is called after each request that succeeded.

        Raises `AlreadyExists` if the name is taken, `WriteUncertain` if it is not known whether the object is stored
        or will be, and `StoreUnavailable` if it was not stored.
        """
        return _Put(self, name, content.size, content.crc32c, budget).run(_Sending(content.file, moved))

    def read(self, info: ObjectInfo, start: int, stop: int, budget: Budget) -> bytes:
        """Reads bytes of one generation of an object; raises `NotFound` if that is gone."""
        with self.explained(f"read {info.name!r}"):
            return _range(self, info, start, stop, budget)


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
                retry=retry_within(budget, payload, self._note),
            )
        except requests.JSONDecodeError as error:
            raise gcs_errors.OddAnswer.of(error) from error
        if blob.generation is None:
            raise gcs_errors.EmptyAnswer("an answer without the generation of the object")
        return ObjectInfo(self._name, self._size, str(blob.generation), self._crc32c)

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


def _range(bucket: GcsBucket, info: ObjectInfo, start: int, stop: int, budget: Budget) -> bytes:
    blob = bucket.blob(info.name, generation=int(info.version))
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
                retry=retry_within(budget),
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
