"""Files of a local store while they are being written: they get their names when they are durable."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage.direct_writing import Blocks, BlockWriter
from keras_preempt.checkpoint.storage.overlap import Overlap
from keras_preempt.checkpoint.storage.posix_files import (
    flush_folder,
    give_name,
    open_temporary,
    remove_temporary,
    write_all,
)
from keras_preempt.checkpoint.storage.store import Buffer, Moved, uncounted
from keras_preempt.process.threads import Pool

FLUSHES = 4
"""Files or blocks that are on their way to the disk at a time, while more is written."""

Explained = Callable[[], AbstractContextManager[None]]
"""Turns errors of the system into those of a store, which name the file."""


class UnfinishedFile:
    """A file under a temporary name in its own folder; implements `store.Writer`.

    Args:
        target: Its future path.
        explained: Around every call of the system.
        taken: Returns the error for a name that another file has by now.
        blocks: Where its content is gathered, if it may be written later.
        moved: Called with how much was handed over; all but a few blocks of it are on their way to the disk.
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
        """Appends all of `buffer`."""
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
                    self._stop()
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
        self._stop()
        os.close(self._descriptor)
        remove_temporary(self._temporary)

    def _stop(self) -> None:
        if self._content is not None:
            self._content.discard()


class CountedFile(io.FileIO):
    """A file that is read in large pieces.

    Args:
        descriptor: Is closed with the file.
        moved: Called with how much was read.
    """

    def __init__(self, descriptor: int, moved: Moved) -> None:
        super().__init__(descriptor, "rb")
        self._moved = moved

    def readinto(self, buffer: Any, /) -> int:
        """Fills `buffer` and tells how much that was."""
        count = super().readinto(buffer)
        self._moved(count)
        return count


class FileLog:
    """Appends to a descriptor that was opened for appending; implements `store.LineSink`.

    Args:
        name: For messages.
        descriptor: Is closed with the log.
        explained: Around every call of the system.
    """

    def __init__(self, name: str, descriptor: int, explained: Explained) -> None:
        self._name = name
        self._descriptor: int | None = descriptor
        self._explained = explained

    def write(self, data: bytes) -> None:
        """Appends `data` in one piece; all of it, or nothing."""
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
        """Ends the use of the log."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class Flushes(Overlap):
    """The files that one thread has written and that are not durable yet.

    Attributes:
        blocks: For their content.
    """

    def __init__(self) -> None:
        super().__init__(FLUSHES)
        self._pool = Pool(FLUSHES, "keras_preempt-flush")
        self._folders: dict[Path, UnfinishedFile] = {}
        self.blocks = Blocks(self._pool)

    def flush(self, file: UnfinishedFile) -> None:
        """Takes over a file that is completely written."""
        self._folders[file.target.parent] = file
        self.add(self._pool.submit(file.finish), file.discard)

    def finish(self) -> None:
        """Returns when all files are durable, and their names too."""
        super().finish()
        for file in self._folders.values():
            file.flush_folder()

    def abandon(self) -> None:
        """Discards the files that are not being flushed yet, and waits for the others."""
        super().abandon()
        self._pool.shutdown()
