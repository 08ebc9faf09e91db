"""The protocol of a store: what checkpoints need from storage.

A `Store` holds immutable files under relative, '/'-separated names, like an object store: there are no
folders to make, a file is there completely or not at all, and nothing is ever overwritten. Only a log grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from keras_preempt.checkpoint.errors import UnsafeName

Moved = Callable[[int], None]
"""Called with how many more bytes have gone to the storage or come from it: for pieces of about 1 MiB or more, from any
thread, several at a time. A negative number means that so many have to be moved once more."""

Shown = Callable[[str, int], AbstractContextManager[Moved]]
"""Called with the task, such as "Reading step-00000012/00001-0000", and how many bytes that moves."""

TEMPORARY_PREFIX = ".tmp-"
"""Names with a component that starts so are half-written files: never listed, never asked for."""

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
    """Checks that a name stays below the directory that it is relative to.

    Every name that reaches a store passes through here, so that a name from an untrusted manifest cannot lead
    anywhere else.

    Args:
        name: Components joined by '/', already in normal form.

    Returns:
        `name`, unchanged.

    Raises:
        UnsafeName: It is empty, absolute or not in normal form, contains '..', a backslash or a NUL, is
            longer than storage allows, or is reserved for temporary files.
    """
    why = _unsafe(name)
    if why is not None:
        raise UnsafeName(
            f"Expected a relative, '/'-separated name below the directory. Received: {name!r:.200} ({why}). "
            "It was not used; check where the name comes from."
        )
    return name


def _unsafe(name: object) -> str | None:
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

    def write(self, buffer: Buffer) -> None:
        """Appends all bytes of `buffer`."""
        ...


class LineSink(Protocol):
    """The end of a log."""

    def write(self, data: bytes) -> None:
        """Appends `data` in one piece and hands it to the storage at once."""
        ...

    def close(self) -> None:
        """Ends the use of the log; what was written stays."""
        ...


class Store(Protocol):
    """Where checkpoints live.

    All names are checked by `check_name`. A prefix is a name too, or '' for everything; it stands for what is
    below it ('a' for 'a/b', not for 'ab'). Every method may raise `StoreUnavailable` and `UnsafeName`.
    """

    deadline: float | None
    """Monotonic seconds by which every call should be over; None for no such moment. A store of local files
    cannot cut a write short and pays no attention to it."""

    @property
    def url(self) -> str:
        """How a user names the place, for messages."""
        ...

    @property
    def key(self) -> str:
        """The place itself: the same, however a user spells it."""
        ...

    @property
    def look_again(self) -> tuple[float, float]:
        """Seconds between two looks at what another process is to write: at first, and at the longest.

        A waiting caller doubles the first up to the longest. A look may cost money and count against a quota.
        """
        ...

    @property
    def shared_by_network(self) -> bool:
        """Whether workers that read the same file share a network, or a limit of the storage, and wait for each other.

        Then it is worth it that one reads a file and gives it to the others.
        """
        ...

    def file_size(self, total: int) -> int:
        """Returns how many bytes each file should have at most when `total` bytes are written one after the other.

        Smaller files than the writer's own limit are worth it where several are transferred faster than one.
        """
        ...

    def prepare(self) -> None:
        """Makes the place usable if need be and makes sure that it can be written to.

        Raises:
            StoreUnavailable: It cannot; the message names the place and the cure.
        """
        ...

    def check_space(self, size: int) -> None:
        """Makes sure that files of `size` bytes find room on the disk that they are written or staged on.

        Raises:
            StoreUnavailable: They do not; the message says how much is free.
        """
        ...

    def read(self, name: str, *, limit: int) -> bytes:
        """Returns the whole of a small file.

        Raises:
            NotFound: There is no such file.
            TooLarge: It is larger than `limit` bytes; raised before memory is taken for it.
        """
        ...

    def create(self, name: str, data: bytes) -> FileInfo:
        """Stores a small file: durable, and complete as soon as it is visible.

        Raises:
            AlreadyExists: There is such a file; it is unchanged.
        """
        ...

    def writer(self, name: str, moved: Moved = uncounted) -> AbstractContextManager[Writer]:
        """Streams a file, which becomes durable and visible when the block ends without an exception.

        After an exception nothing of it is left. Raises `AlreadyExists` like `create`. `moved` is called with how much
        has gone to the storage, which may be later than it was written.
        """
        ...

    def overlapped(self) -> AbstractContextManager[None]:
        """Lets files that this thread writes with `writer` become durable later: at the end of this block.

        Several are then on their way at once where the storage can do that. The block ends when all are durable;
        it raises the error of a file that failed, unless a `writer` in it has raised that already.
        """
        ...

    def open(self, name: str, moved: Moved = uncounted) -> BinaryIO:
        """Opens a file for reading from its beginning, with `readinto` too. Raises `NotFound`.

        `moved` is called with how much has come from the storage, which may be earlier than it is read.
        """
        ...

    def read_ahead(self, name: str) -> None:
        """Has the system fetch a file into its own memory, if it can: it will be read soon. Raises `NotFound`."""
        ...

    def stat(self, name: str) -> FileInfo:
        """Returns what is known about a file. Raises `NotFound`."""
        ...

    def list(self, prefix: str) -> FileInfos:
        """Returns all files below `prefix`, sorted by name; an empty list if there are none."""
        ...

    def children(self, prefix: str) -> Names:
        """Returns the sorted names, one component each, of what is directly below `prefix`."""
        ...

    def delete(self, name: str) -> None:
        """Removes a file. Raises `NotFound`."""
        ...

    def delete_tree(self, prefix: str) -> None:
        """Removes everything below `prefix`, which must not be ''; what is gone already is no error."""
        ...

    def append_log(self, name: str) -> LineSink:
        """Opens a log at its end, making it if need be."""
        ...

    def close(self) -> None:
        """Ends the store's threads and removes its files on local disk; a later call starts it again.

        Raises:
            StoreUnavailable: Lines of a log could not be handed over; everything else is ended nevertheless.
        """
        ...
