"""A prefix of a bucket, and the names of the objects that hold its files."""

from __future__ import annotations

from keras_preempt.checkpoint.errors import UnsafeName
from keras_preempt.checkpoint.storage.store import TEMPORARY_PREFIX, check_name

_LONGEST_NAME = 1024  # bytes; of an object, with the prefix


class BucketPlace:
    """A prefix of a bucket, and the objects that hold its files.

    `url` is how the user names it, `bucket` the name of the bucket or container, `prefix` what follows it: empty, or
    ending with '/'. `root` is the URL of the bucket itself, without a '/' at its end. Raises ValueError if the
    prefix is not in normal form.
    """

    def __init__(self, url: str, root: str, bucket: str, prefix: str) -> None:
        self.url, self.bucket = url, bucket
        self.prefix = prefix.rstrip("/")
        if self.prefix:
            try:
                self.prefix = f"{check_name(self.prefix)}/"
            except UnsafeName as error:
                raise ValueError(
                    f"Expected a prefix in normal form below the bucket. Received: {url!r}. Leave out empty, '.' and "
                    "'..' components, backslashes, and names that begin with '.tmp-'."
                ) from error
        self.key = f"{root}/{self.prefix}".rstrip("/")

    def folder_of(self, prefix: str) -> str:
        """Returns what the objects below a prefix begin with."""
        return self.prefix if prefix == "" else f"{self.object_of(prefix)}/"

    def object_of(self, name: str, *, temporary: bool = False) -> str:
        """Returns the name of a file's object, or of one that no listing shows; raises `UnsafeName`."""
        target = self.prefix + (TEMPORARY_PREFIX + name if temporary else check_name(name))
        if len(target.encode()) > _LONGEST_NAME:
            raise UnsafeName(
                f"Expected a name of at most {_LONGEST_NAME} bytes with the prefix of {self.url}. Received: "
                f"{len(target.encode())} bytes ({name!r:.200}). Use a shorter prefix."
            )
        return target

    def file_of(self, object_name: str) -> str:
        """Returns the name of the file that an object holds."""
        return object_name[len(self.prefix) :]
