"""Which pages of a file the system has in its own memory, as Linux tells it."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

_libc = ctypes.CDLL(None, use_errno=True)


def share_in_memory(path: Path) -> float:
    """Returns how much of a file is in the page cache, from 0 to 1."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        pages = (ctypes.c_ubyte * -(-len(view) // mmap.PAGESIZE))()
        address = ctypes.c_void_p(view.ctypes.data)
        del view
        if _libc.mincore(address, ctypes.c_size_t(path.stat().st_size), pages):
            raise OSError(ctypes.get_errno(), "mincore")
        return sum(page & 1 for page in pages) / len(pages)


def forget(paths: Iterable[Path]) -> None:
    """Has the system drop files from its memory; skips the test where they lie in nothing else."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
        if share_in_memory(path) > 0.1:
            pytest.skip(f"the file system of {path} keeps its files in memory")
