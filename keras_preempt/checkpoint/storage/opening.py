"""From a directory argument to the store that it names."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator

from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.store import Store

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/(/?)")

OpenBucket = Callable[[str, "str | os.PathLike[str] | None"], Store]
"""Returns the store of a URL, given the staging directory; touches no storage."""


def _open_gcs(url: str, staging_dir: str | os.PathLike[str] | None) -> Store:
    # Only here: the client of a bucket takes a while to import.
    from keras_preempt.checkpoint.storage.gcs import GcsStore

    return GcsStore(url, staging_dir=staging_dir)


def _open_s3(url: str, staging_dir: str | os.PathLike[str] | None) -> Store:
    with _extra("s3", url):
        from keras_preempt.checkpoint.storage.s3 import S3BucketStore

    return S3BucketStore(url, staging_dir=staging_dir)


def _open_azure(url: str, staging_dir: str | os.PathLike[str] | None) -> Store:
    with _extra("azure", url):
        from keras_preempt.checkpoint.storage.azure import AzureBucketStore

    return AzureBucketStore(url, staging_dir=staging_dir)


@contextlib.contextmanager
def _extra(name: str, url: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ValueError(
            f"Expected the library obstore, for {url}. Received: {error}. "
            f"Install it with `pip install 'keras-preempt[{name}]'`."
        ) from error


BUCKETS: dict[str, OpenBucket] = {  # By scheme, in lower case.
    "gs": _open_gcs,
    "s3": _open_s3,
    "az": _open_azure,
    "abfss": _open_azure,
}


_EXAMPLES = {
    "az": "az://container/prefix",
    "abfss": "abfss://container@account.dfs.core.windows.net/prefix",
}  # Of schemes whose places are written in another way than those of the others.


def names_bucket(place: str) -> bool:
    """Whether a text has the scheme of a bucket, even if `pathlib` has taken a slash out."""
    scheme = _SCHEME.match(place)
    return scheme is not None and scheme[1].lower() in BUCKETS


def open_store(
    url: str | os.PathLike[str],
    *,
    staging_dir: str | os.PathLike[str] | None = None,
    shown: str | None = None,
) -> Store:
    """Returns the store of a path, or of a place in a bucket such as ``gs://bucket/prefix``; touches no storage.

    Raises ValueError for all else, and if the library that a bucket needs is not installed.

    `staging_dir` is on local disk, for files on their way to or from a bucket; None for the system's temporary
    directory. `shown` is how messages call a local directory; None for `url`.
    """
    if not isinstance(url, (str, os.PathLike)):
        raise ValueError(
            f"Expected a directory as str or os.PathLike. Received: {url!r} of type {type(url).__name__}. "
            "Pass the path of a directory that all workers share."
        )
    place = os.fspath(url)
    if not isinstance(place, str) or not place.strip() or "\0" in place:
        raise ValueError(
            f"Expected a non-empty directory. Received: {place!r}. "
            "Pass the path of a directory that all workers share."
        )
    known = " or ".join(_EXAMPLES.get(scheme, f"{scheme}://bucket/prefix") for scheme in BUCKETS)
    scheme = _SCHEME.match(place)
    if scheme is not None and not scheme[2] and names_bucket(place):  # else it would become a local directory
        raise ValueError(
            f"Expected a path, or {known} as a string. Received: {url!r}, in which a slash is missing. "
            "pathlib takes it out: pass a bucket's place as a string."
        )
    if scheme is None or not scheme[2]:
        return LocalStore(place, shown)
    if names_bucket(place):
        return BUCKETS[scheme[1].lower()](place, staging_dir)
    raise ValueError(
        f"Expected a local or shared path, or {known}. Received: {place!r}, whose scheme "
        f"{scheme[0]!r} is not known. Pass the path of a directory that all workers share."
    )
