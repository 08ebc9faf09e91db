"""Files on their way to the storage while the same thread writes the next one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Generic, TypeVar


class Overlap:
    """The files that one thread has written and that are not stored yet, `most` of them at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.under_way: dict[Future[None], Callable[[], None]] = {}
        """What stores each written file, with what discards the file if that is given up before it begins."""

    def wait_for_room(self) -> None:
        """Waits until one more file may follow; raises the error of one that failed before."""
        while True:
            for future in [future for future in self.under_way if future.done()]:
                del self.under_way[future]
                future.result()
            if len(self.under_way) < self._most:
                return
            wait(self.under_way, return_when=FIRST_COMPLETED)

    def finish(self) -> None:
        """Returns when all files are stored; raises the error of the first one that failed."""
        for future in list(self.under_way):
            future.result()
            del self.under_way[future]

    def abandon(self) -> None:
        """Gives up the files whose turn has not come; nothing will refer to the others."""
        for future, discard in self.under_way.items():
            if future.cancel():
                discard()
        self.under_way.clear()


Each = TypeVar("Each", bound=Overlap)


class Overlaps(threading.local, Generic[Each]):
    """The block of `Store.overlapped` that each thread is in."""

    current: Each | None = None
    """What this thread's files are added to; None outside of such a block."""

    @contextlib.contextmanager
    def block(self, overlap: Each) -> Iterator[None]:
        """Makes `overlap` this thread's, and finishes it at the end of the block."""
        outer, self.current = self.current, overlap
        try:
            yield
            overlap.finish()
        finally:
            overlap.abandon()
            self.current = outer
