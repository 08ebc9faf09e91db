"""A bucket of S3 or Azure, by obstore: calls with their retries, looking at objects and removing them.

The library is not asked to retry: it does not know the deadline.

A deletion has no condition: it also removes what has replaced the object since it was looked at.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import BaseError, PreconditionError

from keras_preempt.checkpoint.errors import NotFound, StoreUnavailable
from keras_preempt.checkpoint.storage.bucket_place import BucketPlace
from keras_preempt.checkpoint.storage.budget import Budget
from keras_preempt.checkpoint.storage.objects import ObjectInfo, ObjectInfos, ObjectNames
from keras_preempt.checkpoint.storage.obstore_calls import CallLoop, Result
from keras_preempt.checkpoint.storage.obstore_errors import (
    FAILURES,
    BadEnvironment,
    CallFailure,
    CloudWords,
    Explaining,
    ForeignAnswer,
)
from keras_preempt.checkpoint.storage.tcp_progress import UploadWatch

TOKEN, CRC32C = "keraspreempttoken", "keraspreemptcrc32c"  # Azure takes letters and digits only.
_CONNECT = 10.0  # seconds for a connection, at most
_PAGE = 1000  # objects of a listing
_SMALL = 256 << 10  # bytes; a smaller upload is over as soon as it begins
_FOLDER = "hdi_isfolder"  # what Azure notes of a folder, where it has real ones
_FIRST_REFUSALS = 3  # of credentials, before anything has succeeded: a person may be waiting for the error


def client_options(endpoint: str, certificates: str | None = None) -> Any:
    """Returns the library's options for a server; `certificates` is a variable that may name a file of more of them.

    Calls are cut here, by their budgets, and not by the library's own timeouts, which end large transfers.
    """
    options: dict[str, Any] = {
        "timeout": timedelta(hours=1),
        "connect_timeout": timedelta(seconds=_CONNECT),
        "allow_http": endpoint.startswith("http://"),
    }
    if certificates is not None and (path := os.environ.get(certificates)):
        try:
            options["root_certificate"] = Path(path).read_bytes()
        except OSError as error:
            raise BadEnvironment(
                f"{certificates}={path} ({error.strerror or error})", f"Correct {certificates}."
            ) from error
    return options


def made_of_environment(kind: Callable[..., Any], bucket: str, **options: Any) -> Any:
    """Returns a store of the library, which takes from the environment what is not among the options.

    It makes no retries: they are made here, where the deadline is known.
    """
    try:
        return kind(bucket, retry_config={"max_retries": 0}, **options)
    except (BaseError, OSError, ValueError) as error:
        told = str(error).partition("\n\n")[0].strip().rstrip(".")
        raise BadEnvironment(told, "Correct the variables AWS_* or AZURE_* of the environment.") from error


@dataclass(frozen=True)
class ObstoreClient:
    """A store of the library, and the server that it speaks to."""

    store: Any
    endpoint: str

    @property
    def is_plain(self) -> bool:
        """Whether anything on the way may answer for the server."""
        return self.endpoint.startswith("http://")


ClientRequest = Callable[[Any, Callable[[], None]], Coroutine[Any, Any, Result]]
"""Makes a call of the library's store; it is given what it has to call when something has moved."""


class ObstoreBucket:
    """Calls on the bucket of a place. `connect` makes the library's store, from the environment as it is then."""

    keeps_conditions = False

    def __init__(self, place: BucketPlace, connect: Callable[[], ObstoreClient], words: CloudWords) -> None:
        self.place, self.url = place, place.url
        self.service = words.service
        self._connect = connect
        self._words = words
        self._loop = CallLoop()
        self._lock = threading.Lock()
        self._client: ObstoreClient | None = None
        self._has_succeeded = self._is_there = False
        self._refusals = 0  # of credentials

    @property
    def endpoint(self) -> str:
        client = self._client
        return self.service if client is None else client.endpoint

    def keep_to(self, deadline: float | None) -> None:
        """Does nothing: every call has its budget, which knows the deadline."""

    def close(self) -> None:
        """Ends the thread, and lets go of the connections, which the library then closes."""
        with self._lock:
            client, self._client = self._client, None
        self._loop.close()
        if client is not None:
            # The library drops what it holds of Python only when it is entered: an error, whose traceback holds the
            # store and so its connections.
            _ = client.store.prefix

    def stat(self, name: str, budget: Budget) -> ObjectInfo:
        """Raises `NotFound`."""
        found = self.look(name, budget)
        if found is None:
            raise NotFound(self.place.file_of(name), self.url)
        return found[0]

    def look(self, name: str, budget: Budget) -> tuple[ObjectInfo, str | None] | None:
        """Returns an object and the token of the call that created it; None if there is no such object."""

        async def head(store: Any, moved: Callable[[], None]) -> Any:
            try:
                answer = await obstore.get_async(store, name, options={"head": True})
                if answer.meta["e_tag"] is None:
                    raise ForeignAnswer("an answer without the ETag of the object")
                return answer
            except FileNotFoundError:
                if self._is_there:
                    raise
            except BaseError as error:
                if not self.failure_of(error).is_untold:
                    raise
            # The answer to a HEAD does not say what is missing, the object or the bucket, nor why it was refused.
            moved()
            await obstore.get_async(store, name, options={"range": (0, 1)})
            raise ForeignAnswer("an object that is there, and is not when it is looked at")

        try:
            answer = self.again(head, budget, f"read {name!r}")
        except FileNotFoundError:
            self._is_there = True
            return None
        self._is_there = True
        attributes = {str(key).lower(): str(value) for key, value in answer.attributes.items()}
        if _FOLDER in attributes:
            return None
        return _info_of(answer.meta, attributes.get(CRC32C)), attributes.get(TOKEN)

    def list(self, prefix: str, budget: Budget) -> ObjectInfos:
        """Lists the objects whose names begin with `prefix`; each page gets all the time of a call."""
        found = self._all_pages(prefix, budget)
        if not found and self._open().is_plain:
            # Over HTTP, a page of something else can be read as a listing of nothing.
            found = self._all_pages(prefix, budget)
        folders = {folder for name in found for folder in _folders_above(name)}
        # A marker of a folder is shown by the library like a file of the same name.
        return [info for name, info in found.items() if info.size or name not in folders]

    def _all_pages(self, prefix: str, budget: Budget) -> dict[str, ObjectInfo]:
        found: dict[str, ObjectInfo] = {}
        stream: Any = None

        async def next_page(store: Any, moved: Callable[[], None]) -> Any:
            nonlocal stream
            if stream is None:
                stream = obstore.list(
                    store, prefix or None, offset=max(found, default=None), chunk_size=_PAGE
                )
            try:
                return await stream.__anext__()
            except StopAsyncIteration:
                return None
            except BaseException:
                stream = None  # What comes next begins behind what is there.
                raise

        while (page := self.again(next_page, budget.renewed(), f"list {prefix!r}")) is not None:
            for meta in page:
                if meta["path"].startswith(prefix):
                    found[meta["path"]] = _info_of(meta)
        self._is_there = True
        return found

    def folders(self, prefix: str, budget: Budget) -> ObjectNames:
        """Lists what follows `prefix` in names, up to the next '/'."""

        async def children(store: Any, moved: Callable[[], None]) -> ObjectNames:
            answer = await obstore.list_with_delimiter_async(store, prefix or None)
            return [*(meta["path"] for meta in answer["objects"]), *answer["common_prefixes"]]

        found = self.again(children, budget, f"list {prefix!r}")
        if not found and self._open().is_plain:
            found = self.again(children, budget, f"list {prefix!r}")
        self._is_there = True
        return [name[len(prefix) :] for name in found if name.startswith(prefix)]

    def delete(self, info: ObjectInfo, budget: Budget) -> bool:
        """Removes an object, also if it has been replaced since; False if it was gone and the service says so."""

        async def remove(store: Any, moved: Callable[[], None]) -> None:
            await obstore.delete_async(store, info.name)
            if not self._words.tells_deletions and self._open().is_plain:
                moved()
                try:
                    answer = await obstore.get_async(store, info.name, options={"head": True})
                except FileNotFoundError:
                    return
                if answer.meta["e_tag"] == info.version:
                    raise ForeignAnswer("success, and the object is still there")

        try:
            self.again(remove, budget, f"delete {info.name!r}")
        except FileNotFoundError:
            return False
        return True

    def once(self, request: ClientRequest[Result], budget: Budget, payload: int = 0) -> Result:
        """Makes a call; raises what the library raises, or `Silence`."""
        store = self._open().store

        def patience() -> float:
            return budget.timeout()[1] if budget.left else 0.0

        watch = UploadWatch() if payload > _SMALL else None
        result = self._loop.make(
            lambda moved: request(store, moved),
            patience,
            (lambda: False) if watch is None else watch.is_moving,
        )
        self._has_succeeded = True
        return result

    def again(self, request: ClientRequest[Result], budget: Budget, doing: str) -> Result:
        """Makes a call until it succeeds; raises FileNotFoundError and `PreconditionError` as they are."""
        pauses = budget.pauses()
        while True:
            try:
                return self.once(request, budget)
            except StoreUnavailable:
                raise
            except FAILURES as error:
                failure = self.failure_of(error)
                if (
                    isinstance(error, (FileNotFoundError, PreconditionError))
                    and not failure.is_missing_bucket
                ):
                    raise
                if not self.may_pass(failure) or not next(pauses, False):
                    raise self.unavailable(error, doing) from error

    def failure_of(self, error: BaseException) -> CallFailure:
        """Returns what an error tells of a call on this bucket."""
        return CallFailure.of(error, self.place.bucket)

    def may_pass(self, failure: CallFailure) -> bool:
        """Returns whether to try again; new credentials are looked for if those at hand are refused."""
        if not (failure.of_credentials or failure.is_expired):
            return failure.passes
        with self._lock:
            self._client = None  # The next one is made of the environment as it is then.
            self._refusals += 1
            return self._has_succeeded or self._refusals < _FIRST_REFUSALS

    def unavailable(self, error: BaseException, doing: str) -> StoreUnavailable:
        """Returns the error that a failed call is to raise."""
        return Explaining(self.url, self.place.bucket, self.endpoint, self._words).unavailable(error, doing)

    def _open(self) -> ObstoreClient:
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client


def _info_of(meta: Any, crc32c: str | None = None) -> ObjectInfo:
    known = crc32c is not None and crc32c.isascii() and crc32c.isdigit()
    return ObjectInfo(
        meta["path"], meta["size"], str(meta["e_tag"]), int(crc32c) if known and crc32c else None
    )


def _folders_above(name: str) -> Iterator[str]:
    while (end := name.rfind("/")) > 0:
        name = name[:end]
        yield name
