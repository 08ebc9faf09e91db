"""Writes to standard output in a way that cannot hold up a job that was told to stop."""

from __future__ import annotations

import contextlib
import os
import select

__all__ = ["Output"]

_PIECE = 512  # bytes; a pipe that is ready takes as many without blocking (POSIX's least PIPE_BUF)
_HURRIED = 0.2  # seconds that a reader has to take a piece once the job was told to stop


class Output:
    """A descriptor that is written to as fast as its reader reads, until `hurry` is called.

    A reader that is slow, such as a pager, slows down whoever writes. That is as it should be while a job trains, and
    fatal when it has to save: its workers would wait for ever in the middle of a line of output. So from `hurry` on,
    what cannot be written within a moment is dropped.

    Args:
        descriptor: An open file descriptor. It may be non-blocking.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._poll.register(self._wake_reader, select.POLLIN)
        self._hurried = self._dropping = False

    def hurry(self) -> None:
        """From now on waits for no reader. Safe in a signal handler, and from any thread."""
        with contextlib.suppress(BlockingIOError):  # It has been told already, often.
            os.write(self._wake_writer, b"!")

    def write(self, data: bytes) -> None:
        """Writes all of it, or drops the rest if that takes too long.

        Raises:
            OSError: nobody reads any more, the disk is full, the terminal is gone, and the like.
        """
        left = memoryview(data)
        while left and self._is_ready():
            with contextlib.suppress(BlockingIOError):
                left = left[os.write(self._descriptor, left[:_PIECE]) :]

    def _is_ready(self) -> bool:
        while True:
            patience = None if not self._hurried else 0 if self._dropping else int(1000 * _HURRIED)
            ready = dict(self._poll.poll(patience))
            if self._descriptor in ready:  # Also if it is closed or broken, which the write will say.
                self._dropping = False
                return True
            if self._wake_reader in ready:
                self._poll.unregister(self._wake_reader)
                self._hurried = True
                continue
            self._dropping = True
            return False
