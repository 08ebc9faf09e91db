"""Durable files on a POSIX file system, and what to do about its errors."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import time
from pathlib import Path

from keras_preempt.checkpoint.storage.store import TEMPORARY_PREFIX, Buffer

_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
TEMPORARY = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}(?:[0-9]+-[0-9a-f]{{16}}|lock-.+)")
"""The names that half-written files and their locks have here."""

_LOCK_TIMEOUT = 5.0  # seconds; the lock is held for the time of a rename
_LOCK_POLL = 0.01  # seconds
_FOLDER_ATTEMPTS = 10  # times that a folder may vanish before a file is in it, since others remove empty ones


def write_all(descriptor: int, buffer: Buffer, start: int | None = None) -> None:
    """Writes all bytes of `buffer`, to the end or from byte `start` on, however little the system takes at a time."""
    rest = memoryview(buffer).cast("B")
    while rest:
        if start is None:
            rest = rest[os.write(descriptor, rest) :]
        else:
            count = os.pwrite(descriptor, rest, start)
            rest, start = rest[count:], start + count


def open_temporary(folder: Path) -> tuple[int, Path]:
    """Makes a new file under a temporary name; returns its descriptor and path."""
    # The random half keeps hosts that share the file system, and so process numbers, apart.
    path = folder / f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
    return open_in_folder(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC), path


def remove_temporary(path: Path) -> None:
    """Removes a file with a temporary name; one that cannot be removed is no error: the next start removes it."""
    with contextlib.suppress(OSError):
        path.unlink()


def open_in_folder(path: Path, flags: int) -> int:
    """Opens a file and makes its folders, each of which another process may remove while it is empty."""
    for _ in range(_FOLDER_ATTEMPTS - 1):
        with contextlib.suppress(FileNotFoundError):
            make_folder(path.parent)
            return os.open(path, flags, 0o666)
    make_folder(path.parent)
    return os.open(path, flags, 0o666)


def make_folder(folder: Path) -> None:
    """Makes a folder and those above it that are missing, durably."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        try:
            path.mkdir()
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):  # Another process has removed it by now.
                if not (stat.S_ISDIR(path.lstat().st_mode) or path.is_dir()):
                    raise
        flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems flush no folders
            raise
    finally:
        os.close(descriptor)


def give_name(temporary: Path, target: Path) -> bool:
    """Gives a complete file its name; False, with nothing changed, if the name is taken."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        # Over NFS a link that succeeded is reported as existing when its answer was lost and it was retried.
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(temporary.lstat(), target.lstat())
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        return _rename_under_lock(temporary, target)
    return True


def _rename_under_lock(temporary: Path, target: Path) -> bool:
    """The way without hard links: the process that creates the lock file may look and rename."""
    lock = target.parent / f"{TEMPORARY_PREFIX}lock-{target.name}"
    deadline = time.monotonic() + _LOCK_TIMEOUT
    while True:
        try:
            os.close(os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
            break
        except FileExistsError:
            if time.monotonic() > deadline:
                raise OSError(
                    errno.EBUSY,
                    f"{lock} has been held for {_LOCK_TIMEOUT:g} s; remove it if its owner is dead",
                ) from None
            time.sleep(_LOCK_POLL)  # a file system without hard links offers no event to wait for
    try:
        if os.path.lexists(target):
            return False
        os.rename(temporary, target)
        return True
    finally:
        remove_temporary(lock)


def remove_folder(folder: Path) -> None:
    """Removes a folder and all in it, also if others do so at the same time; follows no symbolic link."""
    for parent, folders, files in os.walk(folder, topdown=False):
        for name in files:
            Path(parent, name).unlink(missing_ok=True)
        for name in folders:
            path = Path(parent, name)
            if path.is_symlink():
                path.unlink(missing_ok=True)
            else:
                with contextlib.suppress(FileNotFoundError):
                    path.rmdir()
    with contextlib.suppress(FileNotFoundError):
        folder.rmdir()


_A_FILE_IN_THE_WAY = "A part of that path is a file: remove it, or pass another directory."
_NO_RIGHT = (
    "Give the user that the job runs as the right to write there (chown, chmod), or pass another directory."
)

_ADVICE = {
    errno.EACCES: _NO_RIGHT,
    errno.EPERM: _NO_RIGHT,
    errno.EROFS: (
        "That file system is mounted read-only, which no permission changes: mount it for writing (in a pod: without "
        "readOnly; after an error of the disk: repair it first), or pass a directory on another one."
    ),
    errno.ENOSPC: (
        "That file system is full: free some space (files, if `df -i` shows no free inodes), or pass a directory on a "
        "larger one."
    ),
    errno.EDQUOT: "The quota there is used up: free some space, have the quota raised, or pass another directory.",
    errno.ENOENT: "There is no such folder: make it, or pass another directory.",
    errno.ENOTDIR: _A_FILE_IN_THE_WAY,
    errno.EEXIST: _A_FILE_IN_THE_WAY,
    errno.ESTALE: (
        "The server of that network file system does not know the folder any more: mount it again, or pass another "
        "directory."
    ),
    errno.EIO: (
        "The disk, or the server of that file system, has failed: look at the kernel's log (dmesg), or pass a "
        "directory on another one."
    ),
}


def advice(error: OSError) -> str:
    """Returns what helps against an error of reading or writing in a directory, in words."""
    return _ADVICE.get(
        error.errno or 0,
        "Check the permissions, the free space and the health of that file system, or pass another directory.",
    )
