"""A log in a store whose files cannot be appended to: numbered segments, each a file of its own.

A thread hands the lines over, so that the caller never waits for the network: at once if nothing was handed over in
the last second, else when that second is over, together with all that came in between.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable

from keras_preempt.checkpoint.errors import (
    AlreadyExists,
    CheckpointError,
    StoreUnavailable,
    WriteUncertain,
)
from keras_preempt.checkpoint.storage.store import LineSink, Store
from keras_preempt.process.threads import started

logger = logging.getLogger("keras_preempt")

INTERVAL = 1.0
"""Seconds between two segments, at least; what a process that is killed may not have handed over."""

PATIENCE = 30.0
"""Seconds until the next try after the storage failed, and seconds that closing waits for the thread."""

LARGEST = 4 << 20  # Bytes that are kept while the storage fails; what comes then is lost.


class SegmentedLog(LineSink):
    """The end of a log ``folder/name.jsonl``, whose segments are ``folder/name-0001.jsonl`` and so on."""

    def __init__(self, store: Store, name: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._name = name
        self._clock = clock
        self._changed = threading.Condition()
        self._lines = bytearray()
        self._dropped = 0
        self._closed = False
        self._number: int | None = None
        self._uncertain: bytes | None = None  # What a segment of the last number holds, if it is there.
        self._failure: CheckpointError | None = None
        self._thread: threading.Thread | None = None

    def write(self, data: bytes) -> None:
        """Returns at once; raises `StoreUnavailable` if the log is closed."""
        with self._changed:
            if self._closed:
                raise StoreUnavailable(
                    f"Expected the log {self._name!r} to be open. Received: a write after close. "
                    "Open it again with append_log."
                )
            if len(self._lines) + len(data) > LARGEST:
                self._dropped += 1
                return
            self._lines += data
            self._thread = self._thread or started(self._run, "keras_preempt-events")
            self._changed.notify_all()

    def close(self) -> None:
        """Hands over what is left, for `PATIENCE` seconds or until the deadline. Raises `StoreUnavailable`."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None:
            patience = PATIENCE
            if self._store.deadline is not None:
                patience = min(patience, max(self._store.deadline - time.monotonic(), INTERVAL))
            thread.join(patience)
        elif self._lines:
            self._run()
        with self._changed:
            if self._lines or self._dropped:
                raise StoreUnavailable(
                    f"Expected to keep the log {self._name!r}. Received: {len(self._lines)} bytes that could "
                    f"not be handed over and {self._dropped} lost lines. "
                    f"{self._failure or 'The storage did not answer in time.'}"
                ) from self._failure

    def _run(self) -> None:
        earliest = self._clock()
        while True:
            with self._changed:
                while not self._closed and not (self._lines and self._clock() >= earliest):
                    self._changed.wait(max(earliest - self._clock(), 0.0) if self._lines else None)
                if not self._lines:
                    return
                data, last = bytes(self._lines), self._closed
            began = self._clock()
            handed_over = self._hand_over(data)
            earliest = began + (INTERVAL if self._failure is None else PATIENCE)
            with self._changed:
                del self._lines[:handed_over]
                if last and self._failure is not None:
                    return

    def _hand_over(self, data: bytes) -> int:
        """Stores lines; returns how many bytes of them are stored."""
        settled = 0
        try:
            settled = self._settle()
            if data[settled:]:
                self._create_next(data[settled:])
        except CheckpointError as error:
            if self._failure is None:
                logger.warning("Events are kept back, since they cannot be stored: %s", error)
            self._failure = error
            return settled
        self._failure = None
        return len(data)

    def _settle(self) -> int:
        """Finds out whether an uncertain segment is stored; returns how many bytes of the lines it holds.

        Stored twice, they would count twice.
        """
        if self._uncertain is None or self._number is None:
            return 0
        data, name = self._uncertain, segment_name(self._name, self._number)
        try:
            self._store.create(name, data)
        except AlreadyExists:
            if self._store.read(name, limit=LARGEST) != data:  # Another process appends to the same log.
                data = b""
        self._uncertain = None
        return len(data)

    def _create_next(self, data: bytes) -> None:
        if self._number is None:
            folder, _, name = self._name.rpartition("/")
            stem, dot, suffix = name.partition(".jsonl")
            segment = re.compile(rf"{re.escape(stem)}-([0-9]{{4,9}}){re.escape(dot + suffix)}")
            matches = (segment.fullmatch(child) for child in self._store.children(folder))
            self._number = max((int(match[1]) for match in matches if match), default=0)
        while True:
            self._number += 1
            try:
                self._store.create(segment_name(self._name, self._number), data)
            except AlreadyExists:  # another process appends to the same log
                continue
            except WriteUncertain:
                self._uncertain = data
                raise
            return


def segment_name(log: str, number: int) -> str:
    """Returns the name of the file that holds a log's segment; they are numbered from 1."""
    stem, dot, suffix = log.partition(".jsonl")
    return f"{stem}-{number:04d}{dot}{suffix}"
