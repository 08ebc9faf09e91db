"""The event log of a run in its checkpoint directory, one line of JSON for each event; and the milestones of a fit.

An event has a kind, a time (seconds since 1970), the member and its incarnation, and plain fields. Environment
variables and credentials are never written. Events are rare, so each is handed to the store at once. In a directory it
is then on disk: a process that is killed loses none. A bucket gets them from a thread, at most once a second: there
SIGKILL may lose the events of the last second.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from keras_preempt.agreement.messages import Position
from keras_preempt.checkpoint.documents import FORMAT
from keras_preempt.checkpoint.errors import NotFound, StoreUnavailable, TooLarge, UnsupportedFormat, one_line
from keras_preempt.checkpoint.layout import EVENTS
from keras_preempt.checkpoint.storage.store import LineSink, Store
from keras_preempt.process import this_process
from keras_preempt.process.json_fields import loads, number
from keras_preempt.process.words import counted
from keras_preempt.report.event import LATEST, SCHEMA, Event, process_began, seconds, whole, words

logger = logging.getLogger("keras_preempt")

KINDS = (*SCHEMA, "gone", "hang")
"""What events there are; the last two are the launcher's."""

LARGEST = 64 << 20
"""The most bytes of one file of events that are read."""

_LOG = re.compile(r"([0-9]{5,9})\.(?:launcher|w([0-9]{5,9})(?:-([0-9]{4,9}))?)\.jsonl")

_MOST_UNAVAILABLE = 3

MOST_KEPT = 4 << 20
"""The most bytes of events that wait in memory until the log can be written; what comes then is lost."""

MOST_MARKS = 256
"""Marks that an event has at most; of more, every second one is left out."""


_MOMENTS = ("time", "started_at", "began_at", "read_at", "ready_at", "received_at", "deadline")
"""Fields in seconds since 1970, beside those of "passed"."""


class EventLog:
    """Writes the events of one worker; keeps them in memory until it is opened.

    A log that cannot be written never ends training: what could not be written is written with the next event.
    """

    def __init__(self, member: int, clock: Callable[[], float] = time.time) -> None:
        self._member = member
        self._clock = clock
        self._incarnation: int | None = None
        self._sink: LineSink | None = None
        self._waiting = bytearray()
        self._dropped = 0
        self._marks: list[tuple[float, int]] = []
        self._failed = False
        # Given each event as it happens; must not wait for anything.
        self.listener: Callable[[Event], None] | None = None
        # Events come from the main thread, the watcher and the notice listener.
        self._lock = threading.Lock()

    def open(self, incarnation: int, sink: LineSink) -> None:
        """Names the incarnation and starts writing, earlier events first."""
        with self._lock:
            self._incarnation = incarnation
            self._sink = sink
            self._write()

    def emit(self, kind: str, **fields: object) -> None:
        """Writes one event of one of `KINDS`; `fields` are plain data, times in seconds, sizes in bytes."""
        if kind not in KINDS:
            raise ValueError(f"Expected an event kind, one of {', '.join(KINDS)}. Received: {kind!r}.")
        with self._lock:
            marks, self._marks = self._marks, []
            passed = {"passed": marks} if marks else {}
            written = line(kind, self._clock(), self._member, **fields, **passed)
            if len(self._waiting) + len(written) > MOST_KEPT:
                self._dropped += 1
            else:
                self._waiting += written
            self._write()
            if self.listener is not None:
                # From the line: plain data of its own, which nobody else changes.
                own = json.loads(written)
                kind, moment, member = own.pop("event"), own.pop("time"), own.pop("member")
                self.listener(Event(kind, moment, member, self._incarnation, own))

    def mark(self, step: int) -> None:
        """Remembers that `step` steps are done now, for the field "passed" of the next event. Writes nothing."""
        with self._lock:
            if len(self._marks) >= MOST_MARKS:
                del self._marks[1::2]
            self._marks.append((round(self._clock(), 3), step))

    def close(self) -> None:
        """Ends the log, after a last try to write what is left. Later events stay in memory."""
        with self._lock:
            self._write()
            sink, self._sink = self._sink, None
            if sink is None:
                return
            if self._waiting or self._dropped:
                lost = self._waiting.count(b"\n") + self._dropped
                logger.warning(
                    "The events file lacks %s, which could not be written.", counted(lost, "event")
                )
            try:
                sink.close()
            except OSError as error:
                logger.warning("The events file could not be closed: %s", error)

    def _write(self) -> None:
        if self._sink is None or not self._waiting:
            return
        try:
            self._sink.write(bytes(self._waiting))
        except OSError as error:
            if not self._failed:
                logger.warning(
                    "The events file cannot be written (%s). Training goes on; this is tried again with each event.",
                    error,
                )
            self._failed = True
            return
        self._waiting.clear()
        if self._failed:
            self._failed = False
            logger.info("The events file can be written again.")


def line(kind: str, moment: float, member: int, **fields: object) -> bytes:
    """Returns the line of an event that happened to a member at a moment in seconds since 1970."""
    record = {"event": kind, "time": moment, "member": member, **fields}
    return (json.dumps(record, separators=(",", ":")) + "\n").encode()


def log_name(incarnation: int, member: int | None) -> str:
    """The log of a worker; None: that of the launcher, in which it records how the workers of a start ended."""
    return f"{EVENTS}/{incarnation:05d}.{'launcher' if member is None else f'w{member:05d}'}.jsonl"


class LogName(NamedTuple):
    """Whose log it is: a worker's (in a bucket, whose objects cannot grow, one segment of it), or the launcher's."""

    incarnation: int
    member: int | None
    segment: int | None


def parse_log_name(name: str) -> LogName | None:
    """Returns what the name of a file of events says; None if it is not one."""
    if (log := _LOG.fullmatch(name)) is None:
        return None
    return LogName(int(log[1]), *(None if number is None else int(number) for number in log.group(2, 3)))


def read(
    store: Store, on_gap: Callable[[str], None] | None = None, kept: dict[str, bytes] | None = None
) -> list[dict[str, Any]]:
    """Returns the events of all starts and workers of a run, each with "incarnation", in the order of their times.

    Times of clocks that are behind are moved, see `in_order`. Lines that are half-written or not an event are skipped.
    `on_gap` is called with one sentence about each file in which something is missing. Without it, a log larger than
    `LARGEST` raises `TooLarge`, and a storage that fails `StoreUnavailable`; with it, only if it fails for more than a
    few files. `kept` has the files that never change, by name, as an earlier call has left them: these are not read
    again.
    """
    found = []
    gaps: list[str] = []
    unavailable = 0
    segments: defaultdict[str, list[int]] = defaultdict(list)
    known = {} if kept is None else kept
    for name in store.children(EVENTS):
        if (log := parse_log_name(name)) is None:
            continue
        try:
            data = known[name] if name in known else store.read(f"{EVENTS}/{name}", limit=LARGEST)
        except NotFound:  # removed since it was listed, or a folder
            continue
        except (TooLarge, StoreUnavailable) as error:
            unavailable += isinstance(error, StoreUnavailable)
            if on_gap is None or unavailable > _MOST_UNAVAILABLE:
                raise
            gaps.append(f"{EVENTS}/{name} cannot be read: {one_line(str(error))}")
            continue
        if log.member is None or log.segment is not None:  # Written at once.
            known[name] = data
        if log.segment is not None:
            segments[f"{log.incarnation:05d}.w{log.member:05d}"].append(log.segment)
        member = {} if log.member is None else {"member": log.member}
        for index, event in enumerate(parse_events(name, data, gaps.append)):
            order = (event["time"], log.incarnation, log.member or 0, log.segment or 0, index)
            found.append((order, {**event, "incarnation": log.incarnation, **member}))
    for start, numbers in segments.items():
        missing = max(numbers) - len(numbers)
        if missing > 0:
            gaps.append(f"{EVENTS}/{start}: {missing} of its first {max(numbers)} segments are missing")
    ordered = in_order([event for _, event in sorted(found, key=lambda entry: entry[0])], gaps.append)
    if on_gap is not None:
        for gap in gaps:
            on_gap(gap)
    return ordered


def parse_events(
    name: str, data: bytes, on_gap: Callable[[str], object] = lambda gap: None
) -> list[dict[str, Any]]:
    """Returns the events of one file, and reports what else is in it; `UnsupportedFormat` if that is newer."""
    good, bad = [], []
    newer: Counter[str] = Counter()
    lines = data.splitlines()
    for index, text in enumerate(lines, 1):
        try:
            event = loads(text)
        except ValueError:
            event = None
        kind = event.get("event") if isinstance(event, dict) else None
        if not isinstance(kind, str) or seconds(event, "time") is None:
            bad.append(index)
            continue
        version = event.get("format", 1)  # Format 1 does not say so.
        if isinstance(version, int) and version > FORMAT:
            raise UnsupportedFormat(f"{EVENTS}/{name}", version, FORMAT)
        if kind in KINDS:
            good.append(event)
        else:
            newer[kind] += 1
    if bad == [len(lines)] and not data.endswith(b"\n"):
        on_gap(f"{EVENTS}/{name}: its last line is half-written")
    elif bad:
        on_gap(
            f"{EVENTS}/{name}: {len(bad)} of {len(lines)} lines cannot be read, the first is line {bad[0]}"
        )
    if newer:
        kinds = one_line(", ".join(sorted(newer)))
        on_gap(
            f"{EVENTS}/{name}: {newer.total()} events of kinds that this version does not know ({kinds}); install a "
            "newer keras-preempt"
        )
    return good


def in_order(records: Sequence[dict[str, Any]], on_gap: Callable[[str], None]) -> list[dict[str, Any]]:
    """Returns the events of a run with the times of clocks that are behind moved, in the order of their times.

    Machines' clocks differ. A start is claimed after the one before it, and a checkpoint is restored after it was
    committed. Where the times of a worker say otherwise, the clock of its machine is behind those of the start before,
    and all its times there are moved: it then begins when the start before it ends, which is the least that it can be
    behind. `records` are in the order of their times; `on_gap` gets one sentence for each worker that is moved.
    """
    logs: defaultdict[int, defaultdict[int | None, list[dict[str, Any]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for record in records:
        logs[record["incarnation"]][whole(record, "member")].append(record)
    found: list[dict[str, Any]] = []
    claimed = ended = 0.0
    committed: dict[str, float] = {}
    for start, members in sorted(logs.items()):
        own: list[dict[str, Any]] = []
        for member, log in members.items():
            restored = next((words(each, "checkpoint") for each in log if each["event"] == "restore"), None)
            saved = committed.get((restored or "").rpartition("/")[2], 0.0)
            earliest = {"start": claimed, "restore": saved}
            if any(record["time"] < earliest.get(record["event"], 0.0) for record in log):
                behind = ended - process_began(log)
                on_gap(
                    f"start {start}, w{member}: the clock of its machine was {behind:.0f} s or more behind; its times "
                    "are moved by that"
                )
                log = [_moved(record, behind) for record in log]
            own += log
        claimed = max([claimed, *(record["time"] for record in own if record["event"] == "start")])
        ended = max(record["time"] for record in own)
        for record in own:
            if record["event"] == "commit" and (attempt := words(record, "attempt")) is not None:
                committed.setdefault(attempt, record["time"])
        found += own
    return sorted(found, key=lambda record: record["time"])


def _moved(record: dict[str, Any], by: float) -> dict[str, Any]:
    moved = {**record}
    moved |= {name: moment + by for name in _MOMENTS if (moment := seconds(record, name)) is not None}
    if isinstance(passed := record.get("passed"), list):
        moved["passed"] = [
            [mark[0] + by, *mark[1:]]
            if isinstance(mark, list) and mark and number(mark[0], 0.0, LATEST) is not None
            else mark
            for mark in passed
        ]
    return moved


class Milestones:
    """The events that show how far a fit has come, each written once in an incarnation. The fit begins now.

    From them a report knows where the time went. Only the first step writes an event.
    """

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._began_at = time.time()
        self._owner = os.getpid()
        self._read_at: float | None = None
        self._read_seconds = 0.0
        self._first_step: int | None = None
        self._ready_at = self._began_at
        self.awaits_step = False  # The first step has not been reported yet.

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """In the block a checkpoint is read, or one of the steps of that."""
        began = time.time()
        self._read_at = began if self._read_at is None else self._read_at
        try:
            yield
        finally:
            self._read_seconds += time.time() - began

    def started(self, incarnation: int, members: int, versions: Mapping[str, str] | None = None) -> None:
        """The workers have begun together; `versions` are those of the software that trains."""
        self._events.emit(
            "start",
            incarnation=incarnation,
            members=members,
            process=this_process.name(),
            versions={**this_process.versions(), **(versions or {})},
            started_at=this_process.started_at(),
            began_at=self._began_at,
            read_at=self._read_at,
            read_seconds=self._read_seconds,
        )

    def ready(self, position: Position, epochs: int, ahead: int | None) -> None:
        """The first step is next, at `position`; `ahead` as `SCHEMA` has it."""
        self._first_step = position.step
        self._ready_at = time.time()
        self.awaits_step = True
        self._events.emit("ready", epoch=position.epoch, step=position.step, epochs=epochs, ahead=ahead)

    def passed(self, position: Position) -> bool:
        """The fit has reached a boundary; returns whether it has just done its first step."""
        if self.awaits_step and position.step != self._first_step:
            self.awaits_step = False
            self._events.emit("first_step", step=position.step, seconds=time.time() - self._ready_at)
            return True
        return False

    def end(self, why: str, step: Callable[[], int | None]) -> None:
        """The fit is over in this process. `step` is not called in a child of the process."""
        if os.getpid() == self._owner:
            self._events.emit("end", reason=why, step=step())
