"""Files of a bucket that are fetched before they are opened."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import IO

from keras_preempt.checkpoint.storage.objects import ObjectInfo

Fetched = tuple[ObjectInfo, IO[bytes]]


class FetchedAhead:
    """Each file is fetched once: by who fetches ahead, or by who opens it first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, Future[Fetched | None]] | None = None  # None: nothing is fetched ahead.

    def fetch(self, name: str, get: Callable[[], Fetched | None]) -> None:
        """Fetches a file unless it is fetched or opened already; raises what `get` raises."""
        future: Future[Fetched | None] = Future()
        with self._lock:
            if self._files is None:
                self._files = {}
            if name in self._files:
                return
            self._files[name] = future
        try:
            future.set_result(get())
        except BaseException:
            future.set_result(None)  # Who opens it meets the same error, or has more luck.
            raise

    def take(self, name: str) -> Fetched | None:
        """Returns a file that was fetched, when it was if that is under way; None for who has to fetch it."""
        with self._lock:
            if self._files is None:
                return None
            future = self._files.get(name)
            opened: Future[Fetched | None] = Future()
            opened.set_result(None)
            self._files[name] = opened
        return None if future is None else future.result()

    def end(self) -> None:
        """Gives up what nobody has opened."""
        with self._lock:
            files, self._files = self._files or {}, None
        for future in files.values():
            future.add_done_callback(_close)


def _close(future: Future[Fetched | None]) -> None:
    if (fetched := future.result()) is not None:
        fetched[1].close()
