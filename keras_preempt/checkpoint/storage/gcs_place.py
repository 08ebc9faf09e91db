"""A place in a bucket, and the names of the objects that hold its files."""

from __future__ import annotations

import re

from keras_preempt.checkpoint.errors import UnsafeName
from keras_preempt.checkpoint.storage.store import TEMPORARY_PREFIX, check_name

_PLACE = re.compile(r"(?i:gs)://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?:/(.*))?", re.DOTALL)
_LONGEST_NAME = 1024  # bytes; of an object, with the prefix


class GcsPlace:
    """A prefix of a bucket.

    Args:
        url: ``gs://bucket/prefix``; the prefix may be missing.

    Attributes:
        url: The place as it was given.
        bucket: The name of the bucket.
        prefix: What the names of all objects begin with: empty, or ending with '/'.

    Raises:
        ValueError: `url` names no place in a bucket.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.bucket, self.prefix = _parse(url)

    @property
    def key(self) -> str:
        """The place, however a user spells it."""
        return f"gs://{self.bucket}/{self.prefix}".rstrip("/")

    def object_of(self, name: str) -> str:
        """Returns the name of a file's object.

        Raises:
            UnsafeName: `check_name` refuses the name, or it is too long with the prefix.
        """
        return self._joined(check_name(name), name)

    def temporary(self, name: str) -> str:
        """Returns the name of an object that no listing shows."""
        return self._joined(TEMPORARY_PREFIX + name, name)

    def folder_of(self, prefix: str) -> str:
        """Returns what the objects below a prefix begin with."""
        return self.prefix if prefix == "" else f"{self.object_of(prefix)}/"

    def name_of(self, target: str) -> str | None:
        """Returns the name of an object's file; None for an object that no store has written."""
        name = target[len(self.prefix) :]
        return name if is_safe(name) else None

    def _joined(self, last: str, name: str) -> str:
        target = self.prefix + last
        if len(target.encode()) > _LONGEST_NAME:
            raise UnsafeName(
                f"Expected a name of at most {_LONGEST_NAME} bytes with the prefix of {self.url}. Received: "
                f"{len(target.encode())} bytes ({name!r:.200}). Use a shorter prefix."
            )
        return target


def is_safe(name: str) -> bool:
    """Returns whether `check_name` takes a name."""
    try:
        check_name(name)
    except UnsafeName:
        return False
    return True


def _parse(url: str) -> tuple[str, str]:
    """Returns the bucket and the prefix, which is empty or ends with '/'."""
    match = _PLACE.fullmatch(url)
    if match is None:
        raise ValueError(
            f"Expected a place such as gs://bucket/prefix. Received: {url!r}. Bucket names have 3 to 222 "
            "lower-case letters, digits, '-', '_' and '.'; correct the name."
        )
    bucket, prefix = match.group(1), (match.group(2) or "").rstrip("/")
    if not prefix:
        return bucket, ""
    try:
        return bucket, f"{check_name(prefix)}/"
    except UnsafeName as error:
        raise ValueError(
            f"Expected a prefix in normal form below the bucket. Received: {url!r}. Leave out empty, '.' and "
            "'..' components, backslashes, and names that begin with '.tmp-'."
        ) from error
