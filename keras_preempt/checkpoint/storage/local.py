"""A store in a directory of a local or shared POSIX file system.

A file is written under a temporary name in its own folder, flushed to the disk, and then given its name by a
hard link, which fails if the name is taken: so a name leads either to a complete file or to none, and two
writers cannot both win. The folder is flushed last, which makes the name itself survive a power cut.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from keras_preempt.checkpoint.errors import (
    AlreadyExists,
    CallFailed,
    NotFound,
    StoreUnavailable,
    TooLarge,
    UnsafeName,
)
from keras_preempt.checkpoint.storage.local_writing import CountedFile, FileLog, Flushes, UnfinishedFile
from keras_preempt.checkpoint.storage.overlap import Overlaps
from keras_preempt.checkpoint.storage.posix_files import (
    TEMPORARY,
    advice,
    flush_folder,
    make_folder,
    open_in_folder,
    open_temporary,
    remove_folder,
)
from keras_preempt.checkpoint.storage.store import (
    TEMPORARY_PREFIX,
    FileInfo,
    FileInfos,
    Moved,
    Names,
    Store,
    Writer,
    check_name,
    uncounted,
)

SMALLEST_FILE = 8 << 20
"""Bytes; flushing a smaller file costs more than writing the next one meanwhile saves."""

LARGEST_FILE = 64 << 20  # Bytes; a save that gives way to another does so between two files.
_PERMANENT = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})  # Errors that do not go away by themselves.


class LocalStore(Store):
    """Files below one directory, which need not exist before `prepare`; messages call it `shown`, or else `path`.

    Symbolic links inside the directory that lead out of it are refused; the directory itself may be one.
    """

    path: Path  # without symbolic links
    poll_interval = (0.01, 0.05)
    shared_by_network = False
    logs_grow = True

    def __init__(self, path: str | os.PathLike[str], shown: str | None = None) -> None:
        self.url = os.fspath(path) if shown is None else shown
        self.path = Path(os.path.realpath(os.path.expanduser(path)))
        self.key = str(self.path)
        self._overlaps = Overlaps[Flushes]()
        self._prepared = False

    def beside(self, name: str) -> str:
        return str(self.path / f"{TEMPORARY_PREFIX}{name}")

    def file_size(self, total: int) -> int:
        # Several files, so that one is flushed while the next is written.
        return min(max(total // 8, SMALLEST_FILE), LARGEST_FILE)

    def prepare(self) -> None:
        try:
            make_folder(self.path)
            probe, path = open_temporary(self.path)
            try:
                os.write(probe, b"probe")
            finally:
                os.close(probe)
                path.unlink()
        except OSError as error:
            raise StoreUnavailable(
                f"Expected a directory that this process can create and write to. Received: {self.url!r} "
                f"({error.strerror or error}). {advice(error)}"
            ) from error
        self._prepared = True

    def check_space(self, size: int) -> None:
        with self._explained(""):
            free = shutil.disk_usage(self.path).free
        if free < size:
            raise StoreUnavailable(
                f"Expected {size / 1e6:,.1f} MB of free space in {self.url}. Received: {free / 1e6:,.1f} MB. "
                "Free some, or pass a directory on a larger file system."
            )

    def read(self, name: str, *, limit: int) -> bytes:
        with self.open(name) as stream, self._explained(name):
            size = os.fstat(stream.fileno()).st_size
            if size > limit:
                raise TooLarge(name, size, limit)
            data = stream.read(limit + 1)
        if len(data) > limit:
            raise TooLarge(name, len(data), limit)
        return data

    def create(self, name: str, data: bytes) -> FileInfo:
        with self.writer(name) as writer:
            writer.write(data)
        return FileInfo(name, len(data))

    @contextlib.contextmanager
    def writer(self, name: str, moved: Moved = uncounted) -> Iterator[Writer]:
        target = self._resolve(name)
        self._check_still_there()
        overlap = self._overlaps.current
        if overlap is not None:
            overlap.wait_for_room()
        with self._explained(name):
            if os.path.lexists(target):  # saves writing a file that could not get its name anyway
                raise AlreadyExists(name, self.url)
        file = UnfinishedFile(
            target,
            partial(self._explained, name),
            partial(AlreadyExists, name, self.url),
            None if overlap is None else overlap.blocks,
            moved,
        )
        try:
            yield file
        except BaseException:
            file.discard()
            raise
        if overlap is not None:
            overlap.flush(file)
            return
        file.finish()
        file.flush_folder()

    def overlapped(self) -> AbstractContextManager[None]:
        return self._overlaps.block(Flushes())

    def open(self, name: str, moved: Moved = uncounted) -> BinaryIO:
        return io.BufferedReader(CountedFile(self._descriptor(name), moved))

    def read_ahead(self, name: str) -> None:
        descriptor = self._descriptor(name)
        try:
            if hasattr(os, "posix_fadvise"):
                with contextlib.suppress(OSError):  # A file system that takes no advice.
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)

    def _descriptor(self, name: str) -> int:
        path = self._resolve(name)
        with self._explained(name):
            # Not blocking, because opening a pipe with this name would wait forever.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise NotFound(name, self.url)
            return descriptor

    def stat(self, name: str) -> FileInfo:
        path = self._resolve(name)
        with self._explained(name):
            status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise NotFound(name, self.url)
        return FileInfo(name, status.st_size)

    def list(self, prefix: str) -> FileInfos:
        found: FileInfos = []  # without symbolic links
        pending = [(prefix, self._resolve(prefix) if prefix else self.path)]
        while pending:
            folder, path = pending.pop()
            for entry in self._entries(folder, path):
                name = f"{folder}/{entry.name}" if folder else entry.name
                with contextlib.suppress(FileNotFoundError), self._explained(name, missing_is_error=False):
                    if entry.is_dir(follow_symlinks=False):
                        # By its path: a foreign folder may have a name that no file of ours could have.
                        pending.append((name, Path(entry.path)))
                    elif entry.is_file(follow_symlinks=False):
                        found.append(FileInfo(name, entry.stat(follow_symlinks=False).st_size))
        return sorted(found, key=lambda info: info.name)

    def children(self, prefix: str) -> Names:
        path = self._resolve(prefix) if prefix else self.path
        return sorted(entry.name for entry in self._entries(prefix, path))

    def delete(self, name: str) -> None:
        path = self._resolve(name, follow=False)
        with self._explained(name):
            path.unlink()
            # Another process may have removed the empty folder already.
            with contextlib.suppress(FileNotFoundError):
                flush_folder(path.parent)
        self._prune(path.parent)

    def delete_tree(self, prefix: str) -> None:
        path = self._resolve(prefix, follow=False)
        with self._explained(prefix, missing_is_error=False):
            if path.is_symlink() or not path.is_dir():
                path.unlink(missing_ok=True)
            else:
                remove_folder(path)
        self._prune(path.parent)

    def sweep(self, folders: Iterable[str], since: str) -> None:
        # They are left by processes that were killed or could not remove them. Files not named by this store stay.
        for prefix in folders:
            folder = self._resolve(prefix) if prefix else self.path
            with self._explained(prefix, missing_is_error=False), os.scandir(folder) as entries:
                # By the clock of the file system, like the others.
                oldest = self._resolve(since).stat().st_mtime_ns
                for entry in entries:
                    if TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        with contextlib.suppress(OSError):  # Gone already, or another user's.
                            if entry.stat(follow_symlinks=False).st_mtime_ns < oldest:
                                os.unlink(entry.path)

    def append_log(self, name: str) -> FileLog:
        path = self._resolve(name)
        self._check_still_there()
        with self._explained(name):
            # Not blocking, like `open`: a pipe without a reader is an error at once.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            descriptor = open_in_folder(path, flags)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise OSError(errno.EEXIST, "something else than a file has that name")
            return FileLog(name, descriptor, partial(self._explained, name))

    def _check_still_there(self) -> None:
        """Keeps a directory that has vanished from being made again: its content would not come back."""
        if self._prepared and not self.path.is_dir():
            raise StoreUnavailable(
                f"Expected the directory {self.url}, which was there before. Received: nothing of that name. Put it "
                "back, or mount it again."
            )

    def _resolve(self, name: str, *, follow: bool = True) -> Path:
        """Returns where `name` lies; raises `UnsafeName` if that is not below the root."""
        path = self.path / check_name(name)
        real = Path(os.path.realpath(path if follow else path.parent))
        if real != self.path and self.path not in real.parents:
            raise UnsafeName(
                f"Expected {name!r} to lie in {self.url}. Received: a symbolic link that leads to {real}. "
                "Remove the link, or pass the directory that it leads to."
            )
        return real if follow else real / path.name

    def _entries(self, prefix: str, path: Path) -> Iterable[os.DirEntry[str]]:
        found: list[os.DirEntry[str]] = []
        with self._explained(prefix, missing_is_error=False), os.scandir(path) as entries:
            found = [entry for entry in entries if not entry.name.startswith(TEMPORARY_PREFIX)]
        return found

    def _prune(self, folder: Path) -> None:
        """Removes `folder` and those above it while they are empty: an object store has no empty folders."""
        while folder != self.path:
            try:
                folder.rmdir()
            except OSError:  # not empty, or another process was faster
                return
            folder = folder.parent

    @contextlib.contextmanager
    def _explained(self, name: str, *, missing_is_error: bool = True) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            if missing_is_error:
                raise NotFound(name, self.url) from error
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise UnsafeName(
                    f"Expected {name!r} to lie in {self.url}. Received: symbolic links that lead in a circle. Remove "
                    "them."
                ) from error
            raises = StoreUnavailable if error.errno in _PERMANENT else CallFailed
            raise raises(
                f"Expected to read and write {name!r} in {self.url}. Received: {error.strerror or error}. "
                f"{advice(error)}"
            ) from error
