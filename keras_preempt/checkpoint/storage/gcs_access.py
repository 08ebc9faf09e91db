"""The proof, before training begins, that a bucket can be used as it will be."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Generator
from io import BytesIO

import google_crc32c

from keras_preempt.checkpoint.errors import AlreadyExists, StoreUnavailable
from keras_preempt.checkpoint.storage.budget import Budget
from keras_preempt.checkpoint.storage.gcs_client import GcsBucket, ObjectInfo
from keras_preempt.checkpoint.storage.gcs_download import get_bytes
from keras_preempt.checkpoint.storage.gcs_place import GcsPlace
from keras_preempt.checkpoint.storage.gcs_upload import put

_SECONDS = 30.0  # less than other calls may take: here a person waits for a clear answer
_DATA = b"probe"


def prove_access(bucket: GcsBucket, place: GcsPlace, deadline: Callable[[], float | None]) -> None:
    """Creates, reads, lists and deletes a small object that no listing of a store shows.

    Raises:
        StoreUnavailable: one of that is not possible; the message says which, why, and what to do.
    """
    with contextlib.closing(try_each(bucket, place, deadline)) as tried:
        for _, error in tried:
            if error is not None:
                raise error


def try_each(
    bucket: GcsBucket, place: GcsPlace, deadline: Callable[[], float | None]
) -> Generator[tuple[str, StoreUnavailable | None], None, None]:
    """Tries "create", "read", "list" and "delete", one by one, and gives each with its error or None.

    What needs an object is not tried if none could be created, and not given.
    """
    probe = place.temporary(f"probe-{secrets.token_hex(8)}")
    budget = Budget(_SECONDS, deadline)
    info: ObjectInfo | None = None
    failed: StoreUnavailable | None = None
    try:
        info = put(bucket, probe, BytesIO(_DATA), len(_DATA), google_crc32c.value(_DATA), budget)
    except AlreadyExists as error:
        failed = StoreUnavailable(
            f"Expected a server that keeps conditions at {bucket.endpoint}. Received: a new random name in "
            f"{place.url} that is said to be taken. Use Google Cloud Storage itself."
        )
        failed.__cause__ = error
    except StoreUnavailable as error:
        failed = error
    deleted = False
    try:
        yield "create", failed
        if info is not None:
            yield "read", _failure(lambda: get_bytes(bucket, bucket.stat(probe, budget), budget))
        yield "list", _failure(lambda: bucket.folders(place.folder_of(""), budget))
        if (created := info) is not None:
            deleted = True
            yield "delete", _failure(lambda: bucket.delete(created, budget))
    finally:
        if info is not None and not deleted:
            with contextlib.suppress(StoreUnavailable):
                bucket.delete(info, budget)


def _failure(operation: Callable[[], object]) -> StoreUnavailable | None:
    try:
        operation()
    except StoreUnavailable as error:
        return error
    return None
