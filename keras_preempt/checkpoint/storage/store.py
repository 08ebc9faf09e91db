"""What checkpoints need from storage: `Store`, the base class of every kind.

A store holds immutable files under relative, '/'-separated names, like an object store: there are no folders to make,
a file is there completely or not at all, and nothing is ever overwritten. Only a log grows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from keras_preempt.checkpoint.errors import NotFound, StoreUnavailable, UnsafeName

Moved = Callable[[int], None]
"""Called with how many more bytes have gone to the storage or come from it: for pieces of about 1 MiB or more, from any
thread, several at a time. A negative number means that so many bytes must be moved again."""

Shown = Callable[[str, int], AbstractContextManager[Moved]]
"""Called with the task, such as "Reading step-00000012/00001-0000", and how many bytes that moves."""

TEMPORARY_PREFIX = ".tmp-"
"""What a component in the name of a half-written file starts with; such files are never listed or asked for."""

_LONGEST_NAME = 1024  # bytes; the limit of Google Cloud Storage
_LONGEST_COMPONENT = 255  # bytes; the limit of the usual Linux file systems

Buffer = bytes | bytearray | memoryview


def uncounted(count: int) -> None:
    """Ignores how much was moved."""


@contextmanager
def silent(task: str, total: int) -> Iterator[Moved]:
    """Shows nothing."""
    yield uncounted


def check_name(name: str) -> str:
    """Returns `name`; raises `UnsafeName` unless it leads below its directory: a manifest may be untrusted."""
    why = why_unsafe(name)
    if why is not None:
        raise UnsafeName(
            f"Expected a relative, '/'-separated name below the directory. Received: {name!r:.200} ({why}). "
            "It was not used; check where the name comes from."
        )
    return name


def why_unsafe(name: object) -> str | None:
    """What `check_name` has against a name; None if it takes it."""
    if not isinstance(name, str):
        return "not a string"
    if "\0" in name or "\\" in name:
        return "it contains a NUL or a backslash"
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if len(encoded) > _LONGEST_NAME:
        return f"it is longer than {_LONGEST_NAME} bytes"
    for component in encoded.split(b"/"):
        if component in (b"", b".", b".."):
            return "it has an empty, '.' or '..' component"
        if len(component) > _LONGEST_COMPONENT:
            return f"a component is longer than {_LONGEST_COMPONENT} bytes"
        if component.startswith(TEMPORARY_PREFIX.encode()):
            return f"{TEMPORARY_PREFIX!r} is reserved for temporary files"
    return None


@dataclass(frozen=True)
class FileInfo:
    """A stored file: its `name`, relative to the store, and its `size` in bytes."""

    name: str
    size: int


FileInfos = list[FileInfo]
Names = list[str]
# Named, since in the class below the word list means the method.


class Writer(Protocol):
    """A file that is being written; it gets its name when its context manager ends without an error."""

    def write(self, buffer: Buffer) -> None: ...


class LineSink(Protocol):
    """The end of a log."""

    def write(self, data: bytes) -> None:
        """Appends `data` in one piece; raises `StoreUnavailable` if the log is closed."""

    def close(self) -> None:
        """Ends the use of the log; what was written stays."""


class Store(ABC):
    """Where checkpoints live.

    All names are checked by `check_name`. A prefix is a name too, or '' for everything; it stands for what is
    below it ('a' for 'a/b', not for 'ab'). Every method may raise `StoreUnavailable` and `UnsafeName`.
    """

    url: str  # How the user names the place, for messages.
    key: str  # The place itself: the same, however a user spells it.

    deadline: float | None = None
    """Monotonic seconds by which every call should be over. A local store cannot cut a write short and ignores it."""

    path: Path | None = None
    """Where the files are as this machine sees them, absolute; None if they are in no file system. Looking at them
    again then costs a request."""

    poll_interval: tuple[float, float] = (0.2, 1.0)
    """Seconds between two looks at what another worker is about to write: at first, doubled up to the second number."""

    shared_by_network = True
    """Whether workers that read the same file slow each other down: then one reads it and gives it to the others."""

    connections = 1
    """Over how many connections at a time the bytes of files come: as many files are read at a time."""

    logs_grow = False
    """Whether a log is one file that grows, and not a new file for each batch of its lines."""

    @property
    def is_local(self) -> bool:
        """Whether this is a directory of a local or shared file system."""
        return self.path is not None

    def beside(self, name: str) -> str:
        """Returns a place for files that are not the run's, which no job uses, as `open_store` takes it.

        For ``gs://bucket/run`` it is ``gs://bucket/run.<name>``, for a directory a folder in it that listings omit.
        """
        scheme, _, place = self.key.partition("://")
        return f"{scheme}://{place}.{name}" if "/" in place else f"{scheme}://{place}/{name}"

    @abstractmethod
    def prepare(self) -> None:
        """Makes the place usable; raises `StoreUnavailable`, with the cure, if it cannot be written to."""

    def check_access(self) -> Iterator[tuple[str, StoreUnavailable | None]]:
        """Tries what a job must be permitted to do; yields each operation with its error, None if it succeeded."""
        try:
            self.prepare()
            yield "write", None
        except StoreUnavailable as error:
            yield "write", error

    @abstractmethod
    def check_space(self, size: int) -> None:
        """Raises `StoreUnavailable` unless files of `size` bytes fit on the disk they are written to or staged on."""

    @abstractmethod
    def file_size(self, total: int) -> int:
        """Returns the most bytes for each file when `total` bytes are written: less where several at a time pay."""

    @abstractmethod
    def read(self, name: str, *, limit: int) -> bytes:
        """Returns a small file. Raises `NotFound`, and `TooLarge` above `limit` bytes, before it takes memory."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> FileInfo:
        """Stores a small file: durable, and complete as soon as it is visible. Raises `AlreadyExists`."""

    @abstractmethod
    def writer(self, name: str, moved: Moved = uncounted) -> AbstractContextManager[Writer]:
        """Streams a file, visible when the block ends; after an error nothing of it is left. Raises `AlreadyExists`."""

    def overlapped(self) -> AbstractContextManager[None]:
        """Lets files that this thread writes with `writer` become durable later: at the end of this block.

        It raises the error of a file that failed, unless a `writer` in it has raised that already.
        """
        return nullcontext()

    @abstractmethod
    def open(self, name: str, moved: Moved = uncounted) -> BinaryIO:
        """Opens a file, with `readinto` too; `moved` may be called before it is read. Raises `NotFound`."""

    def read_ahead(self, name: str) -> None:
        """Fetches a file that will be opened soon, or has the system fetch it, if that can be. Raises `NotFound`."""
        check_name(name)

    def end_read_ahead(self) -> None:  # noqa: B027 - Most have nothing to give up.
        """Gives up what was fetched ahead and not opened."""

    @abstractmethod
    def stat(self, name: str) -> FileInfo:
        """Raises `NotFound`."""

    @abstractmethod
    def list(self, prefix: str) -> FileInfos:
        """Returns all files below `prefix`, sorted by name."""

    @abstractmethod
    def children(self, prefix: str) -> Names:
        """Returns the sorted names, one component each, of what is directly below `prefix`."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Raises `NotFound`."""

    def delete_tree(self, prefix: str) -> None:
        """Removes everything below `prefix`, which must not be ''; what is gone already is no error."""
        for name in [info.name for info in self.list(check_name(prefix))] + [prefix]:
            with suppress(NotFound):
                self.delete(name)

    def sweep(self, folders: Iterable[str], since: str) -> None:  # noqa: B027
        """Removes half-written files in `folders` that are older than the file `since`; a bucket has none."""

    @abstractmethod
    def append_log(self, name: str) -> LineSink:
        """Opens a log at its end, making it if need be."""

    def close(self) -> None:  # noqa: B027
        """Ends threads and removes staged files, also if it raises `StoreUnavailable` for lost lines of a log."""
