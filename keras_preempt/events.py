"""What happened and when: one JSON line an event, in the checkpoint directory, for people and tools.

An event holds a kind, the time (seconds since 1970), the member and its incarnation, and plain fields.
No environment and no credentials are ever written. Events are rare (none while nothing happens), so each
is handed to the store at once: a process that is killed loses none that it has told.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger("keras_preempt")

KINDS = ("start", "restore", "notice", "hold", "plan", "save", "commit", "abort", "finish", "exit", "error")


class LineSink(Protocol):
    """Where lines go: appended and handed to the operating system at once."""

    def write(self, data: bytes, /) -> object:
        """Appends `data`."""
        ...

    def close(self) -> None:
        """Ends the log."""
        ...


class EventLog:
    """Writes events; keeps them in memory until it is told where they go.

    A log that cannot be written never ends training: the first failure is reported, later events are dropped.

    Args:
        member: The index of this process.
        clock: Returns seconds since 1970.
    """

    def __init__(self, member: int, clock: Callable[[], float] = time.time) -> None:
        self._member = member
        self._clock = clock
        self._incarnation: int | None = None
        self._sink: LineSink | None = None
        self._waiting: list[bytes] = []
        self._failed = False
        # Events come from the main thread, the watcher and the notice listener.
        self._lock = threading.Lock()

    def open(self, incarnation: int, sink: LineSink) -> None:
        """Names the incarnation and starts writing, earlier events first."""
        with self._lock:
            self._incarnation = incarnation
            self._sink = sink
            waiting, self._waiting = self._waiting, []
            for line in waiting:
                self._write(line)

    def emit(self, kind: str, **fields: object) -> None:
        """Writes one event.

        Args:
            kind: One of `KINDS`.
            **fields: Plain data; times in seconds, sizes in bytes.

        Raises:
            ValueError: The kind is not one of `KINDS`.
        """
        if kind not in KINDS:
            raise ValueError(f"Expected an event kind, one of {', '.join(KINDS)}. Received: {kind!r}.")
        record = {"event": kind, "time": self._clock(), "member": self._member, **fields}
        line = (json.dumps(record, separators=(",", ":"), sort_keys=False) + "\n").encode()
        with self._lock:
            if self._sink is None:
                self._waiting.append(line)
            else:
                self._write(line)

    def close(self) -> None:
        """Ends the log. Later events are kept in memory only."""
        with self._lock:
            sink, self._sink = self._sink, None
            if sink is not None:
                try:
                    sink.close()
                except OSError as error:
                    logger.warning("The events file could not be closed: %s", error)

    def _write(self, line: bytes) -> None:
        if self._failed or self._sink is None:
            return
        try:
            self._sink.write(line)
        except OSError as error:
            self._failed = True
            logger.warning("The events file cannot be written any more (%s); training goes on.", error)
