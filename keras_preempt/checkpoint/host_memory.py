"""Whether the tensors that a checkpoint claims to hold find room in memory.

A file of a terabyte costs nobody a disk: it can be one hole. So what the lists of a checkpoint claim is
compared with what this process can have before memory is taken for it; then an older checkpoint can be used,
where the system would have killed the process.
"""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

from keras_preempt.checkpoint.errors import NotEnoughMemory

_CONTAINER_LIMITS = (  # of control groups, version 2 and 1, as a process in a container sees its own
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_PROCESS = Path("/proc/self/statm")


def limit() -> int:
    """Returns how many bytes this process can have at most: of the machine, its container and its ulimit."""
    page = os.sysconf("SC_PAGE_SIZE")
    limits = [os.sysconf("SC_PHYS_PAGES") * page]
    for path in _CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no control groups, or no limit ("max")
            limits.append(int(path.read_text()))
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY:
        taken = 0
        with contextlib.suppress(OSError, ValueError):  # not on Linux
            taken = int(_PROCESS.read_text().split()[0]) * page
        limits.append(max(0, addresses - taken))
    return min(limits)


def check_room(directory: str, size: int) -> None:
    """Makes sure that `size` bytes of a checkpoint could find room in memory, before any is taken.

    Where other processes have taken the memory, a `MemoryError` comes later: that is no fault of the checkpoint, and
    no reason to go back to an older one.

    Raises:
        NotEnoughMemory: they could not, whatever else goes on.
    """
    most = limit()
    if size > most:
        raise NotEnoughMemory(directory, size, most)
