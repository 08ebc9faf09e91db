"""Large files written in whole blocks by threads, past the system's cache where the file system allows it.

A checkpoint is not read again soon. In the cache it would displace the training data, and putting it there costs a
copy and, on a busy or virtual machine, a search for free memory, which can take longer than the disk. Only the copy
into a block remains; while one block is on its way to the disk, the next is filled.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from concurrent.futures import Future
from queue import SimpleQueue

from keras_preempt.checkpoint.storage.store import Buffer
from keras_preempt.process.threads import Pool

BLOCK = 4 << 20
"""Bytes of a block; a multiple of what any disk wants offsets, sizes and addresses in memory to be multiples of."""

BLOCKS = 8
"""How many there are: being filled, waiting and on their way; more than files that await their end."""

_DIRECT: int = getattr(os, "O_DIRECT", 0)  # Linux has it


class Blocks:
    """The blocks that all files share which one thread writes at a time.

    Args:
        pool: Writes them; takes them up in the order in which it is given them.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.free: SimpleQueue[mmap.mmap] = SimpleQueue()
        self._made = 0

    def take(self) -> mmap.mmap:
        """Returns a block, once there is one."""
        if self.free.empty() and self._made < BLOCKS:
            self._made += 1
            return mmap.mmap(-1, BLOCK)  # aligned to pages
        return self.free.get()


class BlockWriter:
    """Writes one file from its beginning, block by block.

    Args:
        descriptor: Of an empty file; it is not closed.
        blocks: Where its content is gathered.
    """

    def __init__(self, descriptor: int, blocks: Blocks) -> None:
        self._descriptor = descriptor
        self._blocks = blocks
        self._block: mmap.mmap | None = None
        self._filled = 0
        self._written = 0
        self._writing: list[tuple[Future[None], mmap.mmap]] = []

    def write(self, buffer: Buffer) -> None:
        """Appends `buffer`; raises the `OSError` of an earlier block that failed."""
        rest = memoryview(buffer).cast("B")
        while rest:
            if self._block is None:
                self._block = self._blocks.take()
            count = min(len(rest), BLOCK - self._filled)
            self._block[self._filled : self._filled + count] = rest[:count]
            self._filled += count
            rest = rest[count:]
            if self._filled == BLOCK:
                self._send()

    def _send(self) -> None:
        if not self._written:
            self._set_direct(_DIRECT)
        for future, _ in self._writing:
            if future.done():
                future.result()
        block, self._block, self._filled = self._block, None, 0
        assert block is not None
        self._writing.append((self._blocks.pool.submit(self._put, block, self._written), block))
        self._written += BLOCK

    def _put(self, block: mmap.mmap, start: int) -> None:
        try:
            view = memoryview(block)
            try:
                self._put_all(view, start)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._set_direct(0)  # a file system that wants more than whole blocks
                self._put_all(view, start)
        finally:
            self._blocks.free.put(block)

    def _put_all(self, rest: memoryview, start: int) -> None:
        while rest:
            count = os.pwrite(self._descriptor, rest, start)
            rest, start = rest[count:], start + count

    def _set_direct(self, direct: int) -> None:
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        with contextlib.suppress(OSError):  # a file system that cannot do without the cache
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~_DIRECT | direct)

    def finish(self) -> None:
        """Returns when everything was written; raises the `OSError` of a block that failed."""
        for future, _ in self._writing:
            future.result()
        if self._block is not None:
            self._set_direct(0)
            self._put_all(memoryview(self._block)[: self._filled], self._written)
            self._blocks.free.put(self._block)
            self._block = None

    def discard(self) -> None:
        """Gives up the blocks that are not on their way yet, and waits for those that are."""
        for future, block in self._writing:
            if future.cancel():
                self._blocks.free.put(block)
        for future, _ in self._writing:
            if not future.cancelled():
                future.exception()
        if self._block is not None:
            self._blocks.free.put(self._block)
            self._block = None
