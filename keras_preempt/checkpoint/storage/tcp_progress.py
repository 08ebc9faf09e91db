"""Whether uploads of this process move, told by its connections.

A library that sends a body in one piece does not say how much of it has gone. The system does, of every connection:
the bytes that the other end has acknowledged.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct

_DESCRIPTORS = "/proc/self/fd"
_BYTES_ACKED = 120  # offset in Linux's struct tcp_info (linux/tcp.h)
_LEAST = 16 << 10  # bytes; fewer may be requests without a body


class UploadWatch:
    """Looks again and again whether a connection of this process has sent a piece of a body since the last look."""

    def __init__(self) -> None:
        self._before = _acknowledged()

    def is_moving(self) -> bool:
        """Returns False also if the system does not tell."""
        before, now = self._before, _acknowledged()
        if moves := any(count - before.get(each, count) >= _LEAST for each, count in now.items()):
            self._before = now
        else:
            self._before = {each: before.get(each, count) for each, count in now.items()}
        return moves


def _acknowledged() -> dict[int, int]:
    """Returns how many bytes the other end of each connection has acknowledged, by the connection's inode."""
    found: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(_DESCRIPTORS):
            with contextlib.suppress(OSError):  # It is closed by now, or no connection.
                facts = os.stat(f"{_DESCRIPTORS}/{name}")
                if stat.S_ISSOCK(facts.st_mode):
                    found[facts.st_ino] = _acknowledged_by(int(name))
    return found


def _acknowledged_by(descriptor: int) -> int:
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    if len(facts) < _BYTES_ACKED + 8:
        raise OSError("an old system, which does not tell")
    return int(struct.unpack_from("=Q", facts, _BYTES_ACKED)[0])
