"""A store in memory that keeps every promise of `Store`, and can be looked at from outside."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator
from typing import BinaryIO

from keras_preempt.checkpoint.errors import AlreadyExists, NotFound, StoreUnavailable, TooLarge
from keras_preempt.checkpoint.storage.store import (
    Buffer,
    FileInfo,
    FileInfos,
    LineSink,
    Moved,
    Names,
    Store,
    check_name,
    uncounted,
)

_ROOM = 1 << 30  # bytes


class MemoryStore(Store):
    """Files in memory: created if absent, whole when they are visible, listed as they are at one moment."""

    url = "memory://run"
    key = url
    poll_interval = (0.01, 0.05)
    shared_by_network = False
    logs_grow = True

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self.may_overwrite = False  # a broken store, to show that it is noticed

    def prepare(self) -> None:
        """There is nothing to make."""

    def check_space(self, size: int) -> None:
        if size > _ROOM:
            raise StoreUnavailable(
                f"Expected {size / 1e6:,.1f} MB of free space. Received: {_ROOM / 1e6:,.1f} MB. Save less."
            )

    def file_size(self, total: int) -> int:
        """So small that a worker has several files, and tensors are cut."""
        return 80

    def read(self, name: str, *, limit: int) -> bytes:
        with self.open(name) as stream:
            data = stream.read()
        if len(data) > limit:
            raise TooLarge(name, len(data), limit)
        return data

    def create(self, name: str, data: bytes) -> FileInfo:
        with self._lock:
            if check_name(name) in self.files and not self.may_overwrite:
                raise AlreadyExists(name, self.url)
            self.files[name] = bytes(data)
        return FileInfo(name, len(data))

    @contextlib.contextmanager
    def writer(self, name: str, moved: Moved = uncounted) -> Iterator[Buffered]:
        if check_name(name) in self.files and not self.may_overwrite:
            raise AlreadyExists(name, self.url)
        buffered = Buffered()
        yield buffered
        self.create(name, bytes(buffered.data))

    def open(self, name: str, moved: Moved = uncounted) -> BinaryIO:
        try:
            return io.BytesIO(self.files[check_name(name)])
        except KeyError:
            raise NotFound(name, self.url) from None

    def stat(self, name: str) -> FileInfo:
        with self.open(name) as stream:
            return FileInfo(name, len(stream.read()))

    def list(self, prefix: str) -> FileInfos:
        below = _below(prefix)
        return sorted(
            (FileInfo(name, len(data)) for name, data in list(self.files.items()) if name.startswith(below)),
            key=lambda info: info.name,
        )

    def children(self, prefix: str) -> Names:
        below = _below(prefix)
        return sorted({info.name[len(below) :].split("/")[0] for info in self.list(prefix)})

    def delete(self, name: str) -> None:
        if self.files.pop(check_name(name), None) is None:
            raise NotFound(name, self.url)

    def append_log(self, name: str) -> LineSink:
        return _Log(self.files, check_name(name))


class Buffered:
    """What a writer was given."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, buffer: Buffer) -> None:
        self.data += buffer


class _Log:
    def __init__(self, files: dict[str, bytes], name: str) -> None:
        self._files, self._name, self._open = files, name, True

    def write(self, data: bytes) -> None:
        if not self._open:
            raise StoreUnavailable("Expected an open log. Received: a write after close. Open it again.")
        self._files[self._name] = self._files.get(self._name, b"") + data

    def close(self) -> None:
        self._open = False


def _below(prefix: str) -> str:
    return f"{check_name(prefix)}/" if prefix else ""


class Memory:
    """Where a schedule is played: in memory.

    A worker gets a store of its own, as in a process of its own. `read` and `names` look at what is stored past all
    faults: the content of a file, None if there is none, and the names of all.
    """

    def __init__(self, *, may_overwrite: bool = False) -> None:
        self._store = MemoryStore()
        self._store.may_overwrite = may_overwrite

    def store(self) -> MemoryStore:
        return self._store

    def read(self, name: str) -> bytes | None:
        return self._store.files.get(name)

    def names(self) -> list[str]:
        return list(self._store.files)
