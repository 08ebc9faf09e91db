"""From a directory argument to the store that it names."""

from __future__ import annotations

import os
import re

from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.store import Store

_LOST_SLASH = re.compile(r"gs:/(?!/)", re.IGNORECASE)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def open_store(
    url: str | os.PathLike[str],
    *,
    staging_dir: str | os.PathLike[str] | None = None,
    shown: str | None = None,
) -> Store:
    """Returns the store that a directory argument names; touches no storage.

    Args:
        url: A local or shared path, or ``gs://bucket/prefix``.
        staging_dir: A directory on local disk for files on their way to or from a bucket; None for the
            system's temporary directory.
        shown: How messages call a local directory; None for `url`.

    Raises:
        ValueError: It is empty, no path, no place in a bucket, or has a scheme that is not known.
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
    if _LOST_SLASH.match(place):  # else it would become a local directory named 'gs:'
        raise ValueError(
            f"Expected a path, or gs://bucket/prefix as a string. Received: {url!r}, in which a slash is missing. "
            "pathlib takes it out: pass a bucket's place as a string."
        )
    scheme = _SCHEME.match(place)
    if scheme is None:
        return LocalStore(place, shown)
    if scheme.group(1).lower() == "gs":
        # Only here: the client of a bucket takes a while to import.
        from keras_preempt.checkpoint.storage.gcs import GcsStore

        return GcsStore(place, staging_dir=staging_dir)
    raise ValueError(
        f"Expected a local or shared path, or gs://bucket/prefix. Received: {place!r}, whose scheme "
        f"{scheme.group(0)!r} is not known. Pass the path of a directory that all workers share."
    )
