"""Objects of S3 and Azure created and read by obstore; what these services promise, beside Google's.

- An object is created if there is none, in one request. There is no such condition for uploads in parts.
- After a response was lost, a repeated create is refused because of what the first one has stored. So each carries a
  token in the object's metadata, by which it recognizes its own object; the crc32c is there too.
- S3 also refuses (409) one of two creates at the same time though neither may have stored anything: where there is no
  object, it is tried again.
- A version is an ETag. A read names it, so that no two versions are mixed.
- An upload to S3 is signed with its checksum. One to Azure is guarded by HTTPS alone.
"""

from __future__ import annotations

import mmap
import secrets
from collections.abc import Callable
from io import BytesIO
from typing import Any

import obstore
from obstore.exceptions import PreconditionError

from keras_preempt.checkpoint.errors import AlreadyExists, NotFound, StoreUnavailable, WriteUncertain
from keras_preempt.checkpoint.storage.budget import Budget
from keras_preempt.checkpoint.storage.objects import ObjectContent, ObjectInfo
from keras_preempt.checkpoint.storage.obstore_bucket import CRC32C, TOKEN, ObstoreBucket
from keras_preempt.checkpoint.storage.obstore_errors import FAILURES, ForeignAnswer
from keras_preempt.checkpoint.storage.store import Moved

_PIECE = 1 << 20  # bytes of a read after which it is known to move
_LOOKING = 2.0  # seconds of a budget for finding out whether a write took effect; the rest is for writing
_LOOKING_SHARE = 0.2  # of a short budget


class ObstoreObjects(ObstoreBucket):
    """The same bucket, with what moves the bytes of its objects."""

    def put(self, name: str, content: ObjectContent, budget: Budget, moved: Moved) -> ObjectInfo:
        """Creates an object in one request, as often as it takes; `moved` is called at the end.

        Raises `AlreadyExists` if the name is taken, `WriteUncertain` if it is not known whether the object is stored
        or will be, and `StoreUnavailable` if it was not stored.
        """
        info = _Creation(self, name, content, budget).run()
        moved(content.size)
        return info

    def read(self, info: ObjectInfo, start: int, stop: int, budget: Budget) -> bytes:
        """Reads bytes of one version of an object, and after a failure goes on where it was."""
        pieces: list[bytes] = []
        arrived = start

        async def fetch(store: Any, moved: Callable[[], None]) -> None:
            nonlocal arrived
            if arrived == stop:
                return
            options: Any = {"range": (arrived, stop), "if_match": info.version}
            answer = await obstore.get_async(store, info.name, options=options)
            if answer.meta["e_tag"] != info.version:
                raise FileNotFoundError(f"ETag {answer.meta['e_tag']} instead of {info.version}")
            async for piece in answer.stream(_PIECE):
                pieces.append(piece)
                arrived += len(piece)
                moved()
            if arrived != stop:
                raise ForeignAnswer(f"{arrived - start} bytes instead of {stop - start}")

        try:
            self.again(fetch, budget, f"read {info.name!r}")
        except (FileNotFoundError, PreconditionError) as error:
            raise NotFound(self.place.file_of(info.name), self.url) from error
        return b"".join(pieces)


class _Creation:
    """The creation of one object, with as many tries as it takes."""

    def __init__(self, bucket: ObstoreBucket, name: str, content: ObjectContent, budget: Budget) -> None:
        self._bucket, self._name, self._content = bucket, name, content
        self._budget = budget
        self._writing = budget.ending_before(min(_LOOKING, _LOOKING_SHARE * budget.left))
        self._token = secrets.token_hex(16)
        # Whether a try may have taken effect; and whether one may still, since it had no answer.
        self._perhaps_stored = self._in_flight = False

    def run(self) -> ObjectInfo:
        pauses = self._writing.pauses(self._content.size)
        data = _memory_of(self._content)
        while True:
            try:
                return self._send(data)
            except StoreUnavailable:
                raise
            except FAILURES as error:
                failure = self._bucket.failure_of(error)
                self._perhaps_stored = self._perhaps_stored or failure.is_uncertain
                self._in_flight = self._in_flight or failure.is_in_flight
                taken = failure.is_taken
                if not taken and self._bucket.may_pass(failure) and next(pauses, False):
                    continue
                if (taken or self._perhaps_stored) and (found := self._stored(error)) is not None:
                    return found
                # Nothing is there: it was removed meanwhile, or another's create was under way at the same time.
                if not taken or not next(pauses, False):
                    raise self._given_up(error) from error

    def _send(self, data: Any) -> ObjectInfo:
        attributes = {TOKEN: self._token, CRC32C: str(self._content.crc32c)}

        async def create(store: Any, moved: Callable[[], None]) -> Any:
            return await obstore.put_async(
                store, self._name, data, attributes=attributes, mode="create", use_multipart=False
            )

        answer = self._bucket.once(create, self._writing, self._content.size)
        return ObjectInfo(self._name, self._content.size, str(answer["e_tag"]), self._content.crc32c)

    def _stored(self, failure: BaseException) -> ObjectInfo | None:
        """Returns the object if this very call has stored it; None if there is no such object."""
        try:
            found = self._bucket.look(self._name, self._budget)
        except StoreUnavailable as error:
            why = self._bucket.unavailable(failure, f"create {self._name!r}")
            raise WriteUncertain(
                f"{why} Nor can it be read, so it is not known whether it is stored."
            ) from error
        if found is None:
            return None
        info, token = found
        if (token, info.size, info.crc32c) != (self._token, self._content.size, self._content.crc32c):
            raise AlreadyExists(self._bucket.place.file_of(self._name), self._bucket.url)
        return info

    def _given_up(self, error: BaseException) -> StoreUnavailable:
        why = self._bucket.unavailable(error, f"create {self._name!r}")
        if not self._in_flight:
            return why
        return WriteUncertain(
            f"{why} It is not there now, but a request that was not answered may still be carried out, so it is not "
            "known whether it will be stored."
        )


def _memory_of(content: ObjectContent) -> Any:
    """Returns all of a content for the library, which sends it in one piece; a file is not read into memory."""
    if isinstance(content.file, BytesIO):
        return content.file.getvalue()
    return mmap.mmap(content.file.fileno(), content.size, access=mmap.ACCESS_READ) if content.size else b""
