"""The staging directory of a process: files on their way to or from a bucket, or what a command works with.

It is removed at every exit at which Python code still runs; otherwise by the next process that uses the same root.
A lock decides which process may remove it: the system drops the lock when the owner dies, however it dies. A forked
child, which inherits all of its parent's clean-up, owns nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import google_crc32c

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage.posix_files import advice, write_all
from keras_preempt.checkpoint.storage.store import Buffer
from keras_preempt.process.words import counted

logger = logging.getLogger("keras_preempt")

_NAME = re.compile(r"keras-preempt-[a-z]+-[0-9]+-[0-9a-f]{16}")
_ATTEMPTS = 100  # each one that fails means that a sweeper came between making a directory and locking it

_living: weakref.WeakSet[Any] = weakref.WeakSet()


def check_staging_dir(value: object) -> None:
    """Raises ValueError unless `staging_dir` is None or can be the path of a directory on a local disk."""
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    is_local = isinstance(path, str) and path.strip() != "" and "://" not in path and "\0" not in path
    if value is not None and not is_local:
        raise ValueError(
            f"Expected staging_dir to be a path. Received: {value!r}. Pass an existing directory on a local disk, or "
            "leave it out."
        )


class StagingDirectory:
    """A directory that belongs to this process alone, mode 0700, locked as long as the process lives.

    It is made in `root`, an existing directory on a local disk, or else in the system's temporary directory. `purpose`
    is a word for its name.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None, *, purpose: str = "staging") -> None:
        self._root = Path(tempfile.gettempdir() if root is None else os.path.expanduser(os.fspath(root)))
        try:
            sweep(self._root)
            for _ in range(_ATTEMPTS):
                self.path = self._root / f"keras-preempt-{purpose}-{os.getpid()}-{secrets.token_hex(8)}"
                self.path.mkdir(mode=0o700)
                # A sweeper that sees it before it is locked takes it for a dead process's, and removes it.
                with contextlib.suppress(FileNotFoundError):
                    lock = _try_lock(self.path)
                    if lock is not None:
                        break
            else:
                raise OSError(errno.EBUSY, "others keep removing it")
        except OSError as error:
            raise StoreUnavailable(
                f"Expected a directory on a local disk to stage files in. Received: {self._root} "
                f"({error.strerror or error}), which is staging_dir or else TMPDIR. {advice(error)}"
            ) from error
        self._lock = lock
        # Unlike __del__ this also runs at the exit of the interpreter, before modules are taken apart.
        self._finalizer = weakref.finalize(self, _remove, self.path, lock, os.getpid())
        _living.add(self)

    def needs(self, size: int) -> None:
        """Raises `StoreUnavailable` unless `size` bytes fit."""
        free = shutil.disk_usage(self.path).free
        if free < size:
            raise StoreUnavailable(
                errno.ENOSPC,
                f"Expected {size / 1e6:,.1f} MB of free space for staging in {self._root}. Received: "
                f"{free / 1e6:,.1f} MB. Free some, or pass a directory on a larger disk as staging_dir.",
            )

    def file(self) -> IO[bytes]:
        """Opens a new file for writing and reading that has no name, so that it can never be left behind."""
        try:
            return tempfile.TemporaryFile(dir=self.path, buffering=0)
        except OSError as error:
            raise StoreUnavailable(
                f"Expected to stage a file in {self.path}, which is in staging_dir or else TMPDIR. Received: "
                f"{error.strerror or error}. {advice(error)}"
            ) from error

    def remove(self) -> None:
        """Does nothing in a forked child, or a second time."""
        self._finalizer()

    def __enter__(self) -> StagingDirectory:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


@contextlib.contextmanager
def scratch_directory(purpose: str) -> Iterator[Path]:
    """A directory in the system's temporary directory for the time of a block. Raises OSError."""
    try:
        directory = StagingDirectory(purpose=purpose)
    except StoreUnavailable as error:
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        raise OSError(
            f"Expected a temporary directory to work in. Received: {cause}. {advice(cause)} TMPDIR names it."
        ) from error
    with directory:
        yield directory.path


def sweep(root: Path) -> list[Path]:
    """Removes this user's staging directories below `root` whose owners are dead, and returns them."""
    swept = []
    with os.scandir(root) as entries:
        found = [entry for entry in entries if _NAME.fullmatch(entry.name)]
    for entry in found:
        # Another sweeper may be faster, and a directory that is not ours to remove is no error.
        with contextlib.suppress(OSError):
            if entry.is_symlink() or entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                continue
            path = Path(entry.path)
            lock = _try_lock(path)
            if lock is None:
                continue
            try:
                shutil.rmtree(path)
                swept.append(path)
            finally:
                os.close(lock)
    if swept:
        logger.info(
            "Removed %s that dead processes left in %s.", counted(len(swept), "temporary folder"), root
        )
    return swept


def _try_lock(path: Path) -> int | None:
    """Locks a directory for this process; None if another process holds it or it is no longer there.

    The directory itself is locked, not a file in it: system cleaners leave a locked directory alone, and there
    is no moment at which it exists without the means to lock it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Its former owner or a sweeper may have removed it between the opening and the locking.
        if os.path.samestat(os.fstat(descriptor), path.lstat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _remove(path: Path, lock: int, owner: int) -> None:
    if os.getpid() != owner:
        return
    try:
        # Not an error at exit, where it would come too late: the next process sweeps what is left.
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _let_go_in_child() -> None:
    """Closes the locks that a forked child inherited: it would hold them after its parent's death."""
    for directory in list(_living):
        if directory._finalizer.alive:
            directory._finalizer.detach()
            os.close(directory._lock)
    _living.clear()


os.register_at_fork(after_in_child=_let_go_in_child)


class StagedWriter:
    """Writes all of each buffer to a staged, unbuffered file; keeps the `size` and the `crc32c` of what was written."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        self._name = name
        self.size = 0
        self.crc32c = 0

    def write(self, buffer: Buffer) -> None:
        data = buffer if isinstance(buffer, bytes) else bytes(buffer)  # the sum takes bytes alone
        try:
            write_all(self._file.fileno(), data)
        except OSError as error:
            raise StoreUnavailable(
                f"Expected to stage {self._name!r} on local disk, in staging_dir or else TMPDIR. Received: "
                f"{error.strerror or error}. {advice(error)}"
            ) from error
        self.crc32c = int(google_crc32c.extend(self.crc32c, data))
        self.size += len(data)
