"""The files into which this command itself writes, such as ``> drill.log`` or ``| tee drill.log``."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

__all__ = ["output_files"]

_STREAMS = (1, 2)
_PROCESSES = Path("/proc")


def output_files() -> set[Path]:
    """Returns the files that standard output and standard error end in: directly, or by a process that reads them.

    Where the system has no ``/proc``, none can be told.
    """
    found, pipes = set(), set()
    for stream in _STREAMS:
        try:
            kind = os.fstat(stream).st_mode
            target = os.readlink(f"/proc/self/fd/{stream}")
        except OSError:
            continue
        if stat.S_ISREG(kind):
            found.add(Path(target))
        elif stat.S_ISFIFO(kind):
            pipes.add(target)
    if pipes:
        found.update(_written_by_readers(pipes))
    return found


def _written_by_readers(pipes: set[str]) -> Iterator[Path]:
    own = os.getpid()
    for process in _PROCESSES.iterdir() if _PROCESSES.is_dir() else ():
        if not process.name.isdigit() or int(process.name) == own:
            continue
        opened = dict(_opened(process))
        if any(target in pipes and not writes for target, writes in opened.items()):
            yield from (
                Path(target) for target, writes in opened.items() if writes and Path(target).is_file()
            )


def _opened(process: Path) -> Iterator[tuple[str, bool]]:
    """What a process has open, and whether to write; nothing of one that is gone or another user's."""
    try:
        links = list((process / "fd").iterdir())
    except OSError:
        return
    for link in links:
        try:
            yield os.readlink(link), bool(link.lstat().st_mode & stat.S_IWUSR)
        except OSError:
            continue
