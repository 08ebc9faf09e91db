"""Files of a local store while they are being written: they get their names when they are durable.

Large files are written in whole blocks by threads, past the system's cache where the file system allows it. A
checkpoint is not read again soon. In the cache it would displace the training data, and putting it there costs a
copy and, on a busy or virtual machine, a search for free memory, which can take longer than the disk. Only the copy
into a block remains; while one block is on its way to the disk, the next is filled. Plain writes that the same
threads flush took 1.25 times as long for a save of 400 MB.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import mmap
import os
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage.overlap import Overlap
from keras_preempt.checkpoint.storage.posix_files import (
    flush_folder,
    give_name,
    open_temporary,
    remove_temporary,
    write_all,
)
from keras_preempt.checkpoint.storage.store import Buffer, LineSink, Moved, uncounted
from keras_preempt.process.threads import Pool

FLUSHES = 4  # Files or blocks that are on their way to the disk at a time, while more is written.

BLOCK = 4 << 20
"""Bytes of a block; a multiple of what any disk wants offsets, sizes and addresses in memory to be multiples of."""

BLOCKS = 8
"""How many there are: being filled, waiting and on their way; more than files that await their end."""

_DIRECT: int = getattr(os, "O_DIRECT", 0)  # Linux has it

Explained = Callable[[], AbstractContextManager[None]]
"""Turns errors of the system into those of a store, which name the file."""


class Blocks:
    """The blocks shared by all files that one thread writes at a time; `pool` writes them in the order given."""

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
    """Writes an empty file from its beginning, block by block; does not close its descriptor."""

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
            block = self._block = self._block or self._blocks.take()
            count = min(len(rest), BLOCK - self._filled)
            block[self._filled : self._filled + count] = rest[:count]
            self._filled += count
            rest = rest[count:]
            if self._filled < BLOCK:
                continue
            if not self._written:
                self._set_direct(_DIRECT)
            for future, _ in self._writing:
                if future.done():
                    future.result()
            self._writing.append((self._blocks.pool.submit(self._put, block, self._written), block))
            self._written += BLOCK
            self._block, self._filled = None, 0

    def _put(self, block: mmap.mmap, start: int) -> None:
        try:
            view = memoryview(block)
            try:
                write_all(self._descriptor, view, start)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._set_direct(0)  # a file system that wants more than whole blocks
                write_all(self._descriptor, view, start)
        finally:
            self._blocks.free.put(block)

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
            write_all(self._descriptor, memoryview(self._block)[: self._filled], self._written)
        self.discard()

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


class UnfinishedFile:
    """A file under a temporary name in the folder of its future path, `target`; a `store.Writer`.

    `taken` makes the error for a name that another file has by now. With `blocks` the content is gathered there and
    written later; `moved` is then called with what was handed over, of which a few blocks still wait.
    """

    def __init__(
        self,
        target: Path,
        explained: Explained,
        taken: Callable[[], Exception],
        blocks: Blocks | None = None,
        moved: Moved = uncounted,
    ) -> None:
        self.target = target
        self._moved = moved
        self._explained = explained
        self._taken = taken
        with explained():
            self._descriptor, self._temporary = open_temporary(target.parent)
        self._content = None if blocks is None else BlockWriter(self._descriptor, blocks)

    def write(self, buffer: Buffer) -> None:
        with self._explained():
            if self._content is None:
                write_all(self._descriptor, buffer)
            else:
                self._content.write(buffer)
        self._moved(memoryview(buffer).nbytes)

    def finish(self) -> None:
        """Makes the content durable and then gives the file its name; the folder is still to be flushed."""
        try:
            with self._explained():
                try:
                    if self._content is not None:
                        self._content.finish()
                    os.fsync(self._descriptor)
                except BaseException:
                    if self._content is not None:
                        self._content.discard()
                    raise
                finally:
                    os.close(self._descriptor)
                if not give_name(self._temporary, self.target):
                    raise self._taken()
        finally:
            remove_temporary(self._temporary)

    def flush_folder(self) -> None:
        """Makes the name durable."""
        with self._explained():
            flush_folder(self.target.parent)

    def discard(self) -> None:
        """Removes the file instead of finishing it."""
        if self._content is not None:
            self._content.discard()
        os.close(self._descriptor)
        remove_temporary(self._temporary)


class Flushes(Overlap):
    """The files that one thread has written and that are not durable yet."""

    def __init__(self) -> None:
        super().__init__(FLUSHES)
        self._pool = Pool(FLUSHES, "keras_preempt-flush")
        self._folders: dict[Path, UnfinishedFile] = {}
        self.blocks = Blocks(self._pool)

    def flush(self, file: UnfinishedFile) -> None:
        """Takes over a file that is completely written."""
        self._folders[file.target.parent] = file
        self.under_way[self._pool.submit(file.finish)] = file.discard

    def finish(self) -> None:
        """Returns when all files are durable, and their names too."""
        super().finish()
        for file in self._folders.values():
            file.flush_folder()

    def abandon(self) -> None:
        """Discards the files that are not being flushed yet, and waits for the others."""
        super().abandon()
        self._pool.shutdown()


class CountedFile(io.FileIO):
    """A file that is read in large pieces, each reported to `moved`; closes its descriptor."""

    def __init__(self, descriptor: int, moved: Moved) -> None:
        super().__init__(descriptor, "rb")
        self._moved = moved

    def readinto(self, buffer: Any, /) -> int:
        count = super().readinto(buffer)
        self._moved(count)
        return count


class FileLog(LineSink):
    """Appends to a descriptor that was opened for appending and is closed with the log; `name` is for messages."""

    def __init__(self, name: str, descriptor: int, explained: Explained) -> None:
        self._name = name
        self._descriptor: int | None = descriptor
        self._explained = explained

    def write(self, data: bytes) -> None:
        if self._descriptor is None:
            raise StoreUnavailable(
                f"Expected the log {self._name!r} to be open. Received: a write after close. "
                "Open it again with append_log."
            )
        with self._explained():
            before = os.fstat(self._descriptor).st_size
            try:
                write_all(self._descriptor, data)
            except OSError:
                # Half a line would spoil the next one. Each log has one writer.
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, before)
                raise

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
