"""The proof, before training begins, that a bucket can be used as it will be."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from io import BytesIO

import google_crc32c

from keras_preempt.checkpoint.budget import Budget
from keras_preempt.checkpoint.errors import AlreadyExists, StoreUnavailable
from keras_preempt.checkpoint.gcs_client import GcsBucket
from keras_preempt.checkpoint.gcs_download import get_bytes
from keras_preempt.checkpoint.gcs_place import GcsPlace
from keras_preempt.checkpoint.gcs_upload import put

_SECONDS = 30.0  # less than other calls may take: here a person waits for a clear answer
_DATA = b"probe"


def prove_access(bucket: GcsBucket, place: GcsPlace, deadline: Callable[[], float | None]) -> None:
    """Creates, reads, lists and deletes a small object that no listing of a store shows.

    Raises:
        StoreUnavailable: one of that is not possible; the message says which, why, and what to do.
    """
    probe = place.temporary(f"probe-{secrets.token_hex(8)}")
    budget = Budget(_SECONDS, deadline)
    try:
        info = put(bucket, probe, BytesIO(_DATA), len(_DATA), google_crc32c.value(_DATA), budget)
    except AlreadyExists as error:
        raise StoreUnavailable(
            f"Expected a server that keeps conditions at {bucket.endpoint}. Received: a new random name in "
            f"{place.url} that is said to be taken. Use Google Cloud Storage itself."
        ) from error
    try:
        get_bytes(bucket, bucket.stat(probe, budget), budget)
        bucket.folders(place.folder_of(""), budget)
    except BaseException:
        with contextlib.suppress(StoreUnavailable):
            bucket.delete(info, budget)
        raise
    bucket.delete(info, budget)
