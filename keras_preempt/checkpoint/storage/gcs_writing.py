"""Files of a bucket while they are being written: staged on disk, then sent, several at a time."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import IO

import google_crc32c

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage.posix_files import write_all
from keras_preempt.checkpoint.storage.store import Buffer


class StagedWriter:
    """Writes all of each buffer to a staged file.

    Args:
        file: where to, unbuffered.
        name: the file that it becomes, for messages.

    Attributes:
        size: bytes written.
        crc32c: their sum.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        self._name = name
        self.size = 0
        self.crc32c = 0

    def write(self, buffer: Buffer) -> None:
        """See `store.Writer`."""
        data = buffer if isinstance(buffer, bytes) else bytes(buffer)  # the sum takes bytes alone
        try:
            write_all(self._file.fileno(), data)
        except OSError as error:
            raise StoreUnavailable(
                f"Expected to stage {self._name!r} on local disk. Received: {error.strerror or error}. "
                "Free some space there, or pass a directory on a larger disk as staging_dir."
            ) from error
        self.crc32c = int(google_crc32c.extend(self.crc32c, data))
        self.size += len(data)


class Overlap:
    """The uploads that one thread has under way.

    Args:
        most: how many may be.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._sending: dict[Future[None], IO[bytes]] = {}

    def wait_for_room(self) -> None:
        """Waits until one more upload may begin; raises what one before has failed of."""
        while True:
            done = [future for future in self._sending if future.done()]
            for future in done:
                del self._sending[future]
                future.result()
            if len(self._sending) < self._most:
                return
            wait(self._sending, return_when=FIRST_COMPLETED)  # each is bounded by its own budget

    def add(self, upload: Future[None], file: IO[bytes]) -> None:
        """Takes an upload into account, and the file that it closes at its end."""
        self._sending[upload] = file

    def finish(self) -> None:
        """Waits for all; raises what the first one has failed of."""
        try:
            for future in list(self._sending):
                future.result()
                del self._sending[future]
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Gives up what has not begun; what has is not waited for, and nothing will refer to it."""
        for future, file in self._sending.items():
            if future.cancel():
                file.close()
        self._sending.clear()
