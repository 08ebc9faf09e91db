"""Each worker reads a share of the files and sends it to all others, over the network that they train on.

All workers take part in the same rounds. In each round every worker gives a piece of its share and gets one of every
other share; the pieces of a share, one after the other, are its files. Every worker verifies the sums of what it
receives, as if it had read the files itself.

A worker that left before the last round would leave the others waiting. So damaged content is reported only after the
last round. An error of a round itself ends it for all.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict

import numpy as np

from keras_preempt.checkpoint import failpoints
from keras_preempt.checkpoint.checked_file import PIECE, Bytes, extended
from keras_preempt.checkpoint.errors import CorruptCheckpoint
from keras_preempt.checkpoint.manifest import FileEntry
from keras_preempt.checkpoint.storage.store import Moved
from keras_preempt.checkpoint.tensors import Filling, Places

Gather = Callable[[Bytes], Sequence[Bytes]]
"""Called by all workers in the same order, each with equally many bytes, a multiple of `ROUNDING`: returns what each of
them has given, by number. What it returns is not used after the next call."""

ROUNDING = 8
"""Bytes; the largest element that every network library can move."""

LARGEST_ROUND = 16 << 20
"""Bytes of all workers together in one round: what the exchange takes of memory, a few times over."""

SMALLEST_PIECE = 256 << 10
"""Bytes that a worker gives in a round at least, if it has as many: the time of a round is not all latency."""

_Files = Sequence[tuple[FileEntry, Places]]


class Exchange:
    """The shares of all workers in the files of one checkpoint that all of them need, as one worker sees them.

    Attributes:
        own: The files that this worker reads, each with what says where its content belongs.
        arriving: The bytes that it gets from the others.
        plan: A digest of all shares; the same for all workers whose rounds fit together.
    """

    def __init__(self, directory: str, files: _Files, member: int, shares: Sequence[Sequence[int]]) -> None:
        """`shares` are the places in `files` of what each worker reads: all of them, and the same on every worker."""
        self._directory = directory
        self._member = member
        self._shares = [[files[file] for file in share] for share in shares]
        self._sizes = [sum(entry.size for entry, _ in share) for share in self._shares]
        self._held: list[Bytes] = []
        self.own = self._shares[member]
        self.arriving = sum(self._sizes) - self._sizes[member]
        listed = [[asdict(entry) for entry, _ in share] for share in self._shares]
        self.plan = hashlib.sha256(json.dumps([directory, listed]).encode()).hexdigest()

    def hold(self, read: Iterable[Filling]) -> None:
        """Keeps what was read of the own files, in their order, until the others have it."""
        self._held = [buffer for filling in read for buffer in filling.buffers]

    def run(self, gather: Gather, moved: Moved) -> None:
        """Gives the own share to the others and gets theirs; `moved` is told how much has arrived.

        Raises `CorruptCheckpoint` after the last round, and what `gather` raises at once.
        """
        longest = max(self._sizes)
        length = piece_length(longest, len(self._shares))
        outgoing = _pieces(self._held, length)
        arrivals = {
            worker: _Arrival(self._directory, share, moved)
            for worker, share in enumerate(self._shares)
            if worker != self._member
        }
        for start in range(0, longest, length):
            failpoints.point("restore.in-exchange")
            given = gather(next(outgoing))
            for worker, arrival in arrivals.items():
                arrival.take(given[worker][: max(0, self._sizes[worker] - start)])
        self._held = []
        for arrival in arrivals.values():
            arrival.finish()


def share_out(sizes: Sequence[int], workers: int) -> list[list[int]]:
    """Divides files of these sizes among workers, by their places in `sizes`; every worker comes to the same answer.

    The largest file comes first, and each goes to the worker that has the least to read so far. A file is not cut:
    what its reader verifies is the sum of the whole. So a share exceeds an even one by less than the largest file.
    """
    if workers < 1:
        raise ValueError(f"Expected at least one worker. Received: {workers}. Name a worker that reads.")
    shares: list[list[int]] = [[] for _ in range(workers)]
    # By their bytes, then by their files: the first has the least.
    least = [(0, 0, worker) for worker in range(workers)]
    for file in sorted(range(len(sizes)), key=lambda file: (-sizes[file], file)):
        held, files, worker = least[0]
        shares[worker].append(file)
        heapq.heapreplace(least, (held + sizes[file], files + 1, worker))
    return [sorted(share) for share in shares]


def give_all(gather: Gather, members: int, member: int, data: bytes) -> list[bytes]:
    """Gives bytes to all other workers; returns what each of them has given, by number.

    All workers call it at the same time. Nothing is verified.
    """
    failpoints.point("restore.in-exchange")
    length = np.full(ROUNDING // 8, len(data), np.int64).view(np.uint8)
    sizes = [int(told.view(np.int64)[0]) for told in gather(length)]
    arrived = [bytearray() for _ in sizes]
    step = piece_length(max(sizes), members)
    pieces = _pieces([np.frombuffer(data, np.uint8)], step)
    for start in range(0, max(sizes), step):
        failpoints.point("restore.in-exchange")
        for worker, given in enumerate(gather(next(pieces))):
            arrived[worker] += given[: max(0, sizes[worker] - start)].tobytes()
    arrived[member][:] = data
    return [bytes(each) for each in arrived]


def piece_length(longest: int, members: int) -> int:
    """Returns how many bytes each worker gives in a round, given the bytes of the largest share."""
    most = max(LARGEST_ROUND // members, SMALLEST_PIECE)
    return max(ROUNDING, min(most, longest + -longest % ROUNDING)) // ROUNDING * ROUNDING


def _pieces(buffers: Iterable[Bytes], length: int) -> Iterator[Bytes]:
    """Yields the bytes of buffers in pieces of one length, and zeros after them."""
    piece, filled = np.empty(length, np.uint8), 0
    for buffer in buffers:
        start = 0
        while start < len(buffer):
            count = min(length - filled, len(buffer) - start)
            piece[filled : filled + count] = buffer[start : start + count]
            filled, start = filled + count, start + count
            if filled == length:
                yield piece
                # Another array, as the network library may still hold that one.
                piece, filled = np.empty(length, np.uint8), 0
    piece[filled:] = 0
    while True:
        yield piece
        piece = np.zeros(length, np.uint8)


class _Arrival:
    """The share of another worker while it arrives."""

    def __init__(self, directory: str, files: _Files, moved: Moved) -> None:
        self._directory = directory
        self._files = files
        self._moved = moved
        self._error: Exception | None = None
        self._room = self._rooms()
        self._free: Bytes | None = None
        self._next()

    def take(self, data: Bytes) -> None:
        """Puts the next bytes where they belong; leaves errors to `finish`."""
        arrived = len(data)
        while len(data) and self._free is not None:
            count = min(len(self._free), len(data))
            self._free[:count] = data[:count]
            self._free, data = self._free[count:], data[count:]
            if not len(self._free):
                self._next()
        if arrived:
            self._moved(arrived)

    def finish(self) -> None:
        """Raises the error, as a rule `CorruptCheckpoint`, unless everything has arrived as it was written."""
        if self._error is not None:
            raise self._error
        assert self._free is None

    def _next(self) -> None:
        try:
            self._free = next(self._room, None)
        except Exception as error:  # Raised by `finish`: the others wait for this worker in every round.
            self._free, self._error = None, error

    def _rooms(self) -> Iterator[Bytes]:
        """Yields where the next bytes belong, and verifies them when they are there."""
        for entry, places in self._files:
            name = f"{self._directory}/{entry.name}"
            crc = 0
            for buffer in Filling(name, entry.size, places):
                for start in range(0, len(buffer), PIECE):
                    piece = buffer[start : start + PIECE]
                    yield piece
                    crc = extended(crc, piece)
            if crc != entry.crc32c:
                raise CorruptCheckpoint(name, "another crc32c than when it was written, from another worker")
