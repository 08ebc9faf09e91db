"""The objects of one bucket: what `BucketStore` needs of a service, and what a service has to promise for it."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import IO, Protocol

import google_crc32c

from keras_preempt.checkpoint.storage.bucket_place import BucketPlace
from keras_preempt.checkpoint.storage.budget import Budget
from keras_preempt.checkpoint.storage.store import Moved


@dataclass(frozen=True)
class ObjectInfo:
    """An object as it was seen; `version` tells its content from any other that the name has had or will have."""

    name: str
    size: int
    version: str
    crc32c: int | None  # None if it is not known


@dataclass(frozen=True)
class ObjectContent:
    """What an object is to hold: all of an open file, whose size and crc32c are known."""

    file: IO[bytes]
    size: int
    crc32c: int

    @classmethod
    def of(cls, data: bytes) -> ObjectContent:
        """Returns the same for bytes in memory."""
        return cls(BytesIO(data), len(data), google_crc32c.value(data))


ObjectInfos = list[ObjectInfo]
ObjectNames = list[str]
# Named, since in the class below the word list means the method.


class BucketObjects(Protocol):
    """Calls on the objects of a place; each takes the time that it may take, with all its retries.

    They take names of objects, and errors name the files that these hold. Each may raise `StoreUnavailable`, with a
    message that says what failed and what to do about it.
    """

    place: BucketPlace
    keeps_conditions: bool
    """Whether every service that this can reach refuses to create what exists; else that is tried at the start."""

    service: str
    """What to use where a server does not keep these promises, in words."""

    @property
    def endpoint(self) -> str:
        """The server, as a message names it."""

    def keep_to(self, deadline: float | None) -> None:
        """Sets the monotonic seconds by which calls under way must be over; None for no such moment."""

    def stat(self, name: str, budget: Budget) -> ObjectInfo:
        """Raises `NotFound`."""

    def list(self, prefix: str, budget: Budget) -> ObjectInfos:
        """Lists the objects whose names begin with `prefix`, which is empty or ends with '/'; `budget` is each page's.

        What services keep to show folders is left out.
        """

    def folders(self, prefix: str, budget: Budget) -> ObjectNames:
        """Lists what follows `prefix` in names, up to the next '/'; folders may end with it."""

    def put(self, name: str, content: ObjectContent, budget: Budget, moved: Moved) -> ObjectInfo:
        """Creates an object in one piece; `moved` is called with the bytes that have arrived.

        Raises `AlreadyExists` if the name is taken, `WriteUncertain` if it is not known whether the object is stored
        or will be, and `StoreUnavailable` if it was not stored.
        """

    def read(self, info: ObjectInfo, start: int, stop: int, budget: Budget) -> bytes:
        """Reads bytes of one version of an object, not yet compared with its sum; raises `NotFound` if it is gone."""

    def delete(self, info: ObjectInfo, budget: Budget) -> bool:
        """Removes an object, if the service can tell, only in the version that was looked at; False if it was gone."""

    def close(self) -> None:
        """Ends threads and connections; a later call opens new ones."""
