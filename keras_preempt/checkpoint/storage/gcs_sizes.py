"""How large the files of a bucket are, and the pieces in which they are read: so that all connections have work.

One stream to a bucket is slower than most networks, and each request costs a moment and a fraction of a cent. So
there are as many files and ranges as connections, or a small multiple of that, as long as none becomes tiny.
"""

from __future__ import annotations

from collections.abc import Iterator

SMALLEST_FILE = (8 << 20) - (256 << 10)
"""Bytes of a file that is worth a request of its own; with its header it still goes up in one request."""

LARGEST_FILE = 64 << 20
"""Bytes of a file; what a failed upload may have to send again."""

_SMALLEST_SHARE = 2 << 20  # bytes of a file, if there are fewer than `SMALLEST_FILE` for each connection
_WAVES = 4  # files that each connection sends one after the other, so that all end at about the same time

_ROUNDING = 64  # bytes; a file ends with a whole element, and what is left over must not make a further file

_SMALLEST_RANGE, _LARGEST_RANGE = 4 << 20, 16 << 20  # bytes


def file_size(total: int, connections: int) -> int:
    """Returns how many bytes each file should have at most when `total` bytes are written; at least 1."""
    each = total // connections
    if each < SMALLEST_FILE:
        files = min(max(total // _SMALLEST_SHARE, 1), connections)
    else:
        files = connections * min(each // SMALLEST_FILE, _WAVES)
    size = -(-total // files)
    return min(size + -size % _ROUNDING + _ROUNDING, LARGEST_FILE)


def ranges(size: int, connections: int) -> Iterator[tuple[int, int]]:
    """Returns the ranges, first byte and byte after the last one, in which a file of `size` bytes is read."""
    count = max(min(size // _SMALLEST_RANGE, connections), -(-size // _LARGEST_RANGE), 1)
    for index in range(count):
        yield size * index // count, size * (index + 1) // count
