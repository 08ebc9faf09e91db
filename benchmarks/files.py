"""For the benchmarks of saving: what the system keeps of a directory's files in its memory, and on the disk."""

from __future__ import annotations

import os
from pathlib import Path

_CHUNK = 8 << 20  # bytes


def flush(folder: Path) -> None:
    """Flushes a directory and everything in it to the disk, which our own save does by itself."""
    for path in [*folder.rglob("*"), folder, folder.parent]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def remember(folder: Path) -> None:
    """Reads a directory's files into the cache of the system, where not all ways of writing leave them."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                buffer = bytearray(_CHUNK)
                while file.readinto(buffer):
                    pass


def forget(folder: Path) -> None:
    """Drops a directory's files, which are on the disk, from the cache of the system."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
