"""What happened and when: one JSON line an event, in the checkpoint directory, for people and tools.

An event holds a kind, the time (seconds since 1970), the member and its incarnation, and plain fields.
No environment and no credentials are ever written. Events are rare (none while nothing happens), so each
is handed to the store at once. In a directory it is on disk then: a process that is killed loses none that it has
told. A bucket gets them from a thread, at most once a second: there SIGKILL may lose those of the last second.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from keras_preempt.checkpoint import strict_json
from keras_preempt.checkpoint.errors import NotFound
from keras_preempt.checkpoint.layout import EVENTS
from keras_preempt.checkpoint.store import Store

logger = logging.getLogger("keras_preempt")

KINDS = (
    "start",
    "restore",
    "notice",
    "withdrawn",
    "hold",
    "plan",
    "save",
    "commit",
    "abort",
    "finish",
    "exit",
    "error",
)

LARGEST = 64 << 20
"""Bytes that are read of one file of events, at most."""

# Of a bucket, whose objects cannot grow, the second group counts the segments of a log.
_LOG = re.compile(r"([0-9]{5,9})\.w([0-9]{5,9})(?:-([0-9]{4,9}))?\.jsonl")


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


def log_name(incarnation: int, member: int) -> str:
    """Returns the name of the log of one worker in one start of the run."""
    return f"{EVENTS}/{incarnation:05d}.w{member:05d}.jsonl"


def read(store: Store) -> list[dict[str, Any]]:
    """Returns the events of a run, of all its starts and workers, in the order of their times.

    What a killed process has left half-written, and what is no event, is passed over.

    Args:
        store: The run's directory, local or in a bucket.

    Returns:
        The events as they were told, each with "incarnation", the number of the start that it belongs to.

    Raises:
        TooLarge: A log is larger than `LARGEST`.
        StoreUnavailable: The storage failed.
    """
    found = []
    for name in store.children(EVENTS):
        log = _LOG.fullmatch(name)
        if log is None:
            continue
        try:
            data = store.read(f"{EVENTS}/{name}", limit=LARGEST)
        except NotFound:  # removed since it was listed, or a folder
            continue
        order = (int(log[1]), int(log[2]), int(log[3] or 0))
        for line, text in enumerate(data.splitlines()):
            event = _event(text)
            if event is not None:
                found.append(((event["time"], *order, line), {**event, "incarnation": order[0]}))
    return [event for _, event in sorted(found, key=lambda entry: entry[0])]


def _event(text: bytes) -> dict[str, Any] | None:
    try:
        event = strict_json.loads(text)
    except ValueError:
        return None
    if not isinstance(event, dict) or event.get("event") not in KINDS:
        return None
    told_at = event.get("time")
    return event if isinstance(told_at, (int, float)) and told_at == told_at else None
