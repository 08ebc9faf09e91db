"""One bucket of Google Cloud Storage, and a place in it: whole objects, created once, read and removed by generation.

An object's generation is the number of its content. Every call here names one: an object that is created must not
exist (generation 0), one that is read or removed must still be the one that was looked at. An upload carries its
crc32c, so that the service refuses what was damaged on the way; a download is compared with the object's.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import random
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from google.api_core import exceptions as api
from google.cloud import storage

from keras_preempt.checkpoint.errors import NotFound, StoreUnavailable
from keras_preempt.checkpoint.storage import gcs_errors
from keras_preempt.checkpoint.storage.bucket_place import BucketPlace
from keras_preempt.checkpoint.storage.budget import Budget
from keras_preempt.checkpoint.storage.gcs_connections import Connections
from keras_preempt.checkpoint.storage.gcs_retry import retry_each_within, retry_within
from keras_preempt.checkpoint.storage.objects import ObjectInfo, ObjectInfos, ObjectNames

_FIELDS = "items(name,size,generation,crc32c),prefixes,nextPageToken"

_PLACE = re.compile(r"(?i:gs)://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?:/(.*))?", re.DOTALL)

_CLIENT = ("google.", "requests", "urllib3")  # What the names of the client's modules begin with.


class GcsPlace(BucketPlace):
    """A prefix of a bucket, given as ``gs://bucket/prefix`` or ``gs://bucket``.

    Raises ValueError if `url` names no place in a bucket.
    """

    def __init__(self, url: str) -> None:
        match = _PLACE.fullmatch(url)
        if match is None:
            raise ValueError(
                f"Expected a place such as gs://bucket/prefix. Received: {url!r}. Bucket names have 3 to 222 "
                "lower-case letters, digits, '-', '_' and '.'; correct the name."
            )
        super().__init__(url, f"gs://{match[1]}", match[1], match[2] or "")


class GcsBucket:
    """Calls on the bucket of a place, with the names of objects; errors name the files that they hold."""

    keeps_conditions = True
    service = "Google Cloud Storage itself"

    def __init__(self, place: GcsPlace, connect: Callable[[], Any], connections: Connections) -> None:
        self.place: BucketPlace = place
        self.url = place.url
        self._connect = connect
        self._connections = connections
        self._client: Any = None
        self._lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        client = self._client
        return "Google Cloud Storage" if client is None else str(client.api_endpoint)

    def keep_to(self, deadline: float | None) -> None:
        """Sets the monotonic seconds by which everything must be over; None for no such moment."""
        self._connections.keep_to(deadline)

    def stat(self, name: str, budget: Budget) -> ObjectInfo:
        """Raises `NotFound`."""
        blob = self.reload(name, budget)
        if blob is None:
            raise NotFound(self.place.file_of(name), self.url)
        with self.explained(f"read {name!r}"):
            return info_of(blob)

    def reload(self, name: str, budget: Budget) -> Any:
        """Returns the client's handle of an object with its metadata; None if there is no such object."""
        with self.explained(f"read {name!r}"):
            blob = self.blob(name)
            try:
                blob.reload(timeout=budget.timeout(), retry=retry_within(budget, expected=dict))
            except api.NotFound as error:
                if gcs_errors.is_missing_bucket(error):
                    raise
                return None
            return blob

    def list(self, prefix: str, budget: Budget) -> ObjectInfos:
        """Lists the objects whose names begin with `prefix`."""
        with self.explained(f"list {prefix!r}"):
            return [info_of(blob) for blob in self._pages(prefix, None, budget)]

    def folders(self, prefix: str, budget: Budget) -> ObjectNames:
        """Lists what follows `prefix` in names, up to the next '/'; folders end with it."""
        with self.explained(f"list {prefix!r}"):
            pages = self._pages(prefix, "/", budget)
            names = [blob.name for blob in pages]  # Before `prefixes`, which the pages bring.
            return [str(name)[len(prefix) :] for name in (*names, *pages.prefixes)]

    def _pages(self, prefix: str, delimiter: str | None, budget: Budget) -> Any:
        return self._open().list_blobs(
            self.place.bucket,
            prefix=prefix or None,
            delimiter=delimiter,
            fields=_FIELDS,
            timeout=budget.timeout(),
            retry=retry_each_within(budget),  # Of each page: there may be any number of them.
        )

    def delete(self, info: ObjectInfo, budget: Budget) -> bool:
        """Removes an object if it is still the one that was looked at; False if it was gone or replaced."""
        with self.explained(f"delete {info.name!r}"):
            blob = self.blob(info.name)
            try:
                # A condition and not a generation: in a bucket with versioning the content then stays behind
                # as a noncurrent version, as the owner of the bucket wants.
                blob.delete(
                    if_generation_match=int(info.version),
                    timeout=budget.timeout(),
                    retry=retry_within(budget),
                )
            except api.NotFound as error:
                if gcs_errors.is_missing_bucket(error):
                    raise
                return False
            except api.PreconditionFailed as error:
                if gcs_errors.is_policy(error):
                    raise
                return False
            return True

    def close(self) -> None:
        """Closes the connections; a later call opens new ones."""
        with self._lock:
            client, self._client = self._client, None
        self._connections.end_watch()
        if client is not None:
            client.close()

    def blob(self, name: str, **options: Any) -> Any:
        """Returns the client's handle of an object; makes no request."""
        return self._open().bucket(self.place.bucket).blob(name, **options)

    def _open(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._connect()
                for scheme in ("https://", "http://"):
                    # The client has no public setting for this; its documentation mounts adapters so too.
                    self._client._http.mount(scheme, self._connections)
                for name, module in list(sys.modules.items()):
                    if name.startswith(_CLIENT) and getattr(module, "__dict__", {}).get("random") is random:
                        module.random = _own_random  # type: ignore[attr-defined]
            return self._client

    @contextlib.contextmanager
    def explained(self, doing: str) -> Iterator[None]:
        """Turns what the client raises while `doing` something into `StoreUnavailable`."""
        try:
            yield
        except StoreUnavailable:
            raise
        except gcs_errors.FAILURES as error:
            raise self.unavailable(error, doing) from error

    def unavailable(self, error: BaseException, doing: str) -> StoreUnavailable:
        """Returns the error that a failed call is to raise."""
        refused = self._connections.refusal()
        return gcs_errors.unavailable(error, doing, self.url, self.endpoint, refused)


def connect() -> Any:
    """Returns a client with the machine's credentials, or an anonymous one for STORAGE_EMULATOR_HOST."""
    # No call of ours needs a project; asked for one, the client fails on machines that have none.
    return storage.Client(project=None)


def info_of(blob: Any) -> ObjectInfo:
    """Returns what the client's handle of an object knows; raises `EmptyAnswer` if size or generation is missing."""
    crc32c = None if blob.crc32c is None else int.from_bytes(base64.b64decode(blob.crc32c), "big")
    size = blob.size
    if size is None and crc32c == 0:
        size = 0  # Servers that build on protocol buffers leave out what is zero.
    if size is None or blob.generation is None:
        missing = "size" if size is None else "generation"
        raise gcs_errors.EmptyAnswer(f"the resource of {blob.name!r} without its {missing}")
    return ObjectInfo(str(blob.name), int(size), str(blob.generation), crc32c)


# Python's module `random` once more, for the client's modules: with everything in it, but another hidden generator.
# The client draws pauses between tries and the boundary of an upload's parts. Python's own generator belongs to the
# training: its state is saved and restored, and a hiccup of the network must not change the numbers that a run sees.
_spec = importlib.util.spec_from_file_location("keras_preempt_random", random.__file__)
assert _spec is not None
assert _spec.loader is not None
_own_random = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_own_random)
