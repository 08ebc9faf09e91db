from __future__ import annotations

import itertools
import json
import logging
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.agreement.messages import Position
from keras_preempt.checkpoint.errors import StoreUnavailable, TooLarge
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.report import events
from keras_preempt.report.events import KINDS, EventLog, Milestones, log_name, read
from keras_preempt.testing import FakeGcs


class Lines:
    """A sink that keeps what it gets; fails if it is told how."""

    def __init__(self, error: Exception | None = None) -> None:
        self.data: list[bytes] = []
        self.closed = False
        self.error = error

    def write(self, data: bytes, /) -> None:
        assert not self.closed
        if self.error is not None:
            raise self.error
        self.data.append(data)

    def close(self) -> None:
        self.closed = True

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in b"".join(self.data).splitlines()]


def opened(member: int = 0) -> tuple[EventLog, Lines]:
    log, sink = EventLog(member, itertools.count(0.0).__next__), Lines()
    log.open(1, sink)
    return log, sink


def test_each_event_is_one_line_of_json_that_is_handed_over_at_once() -> None:
    log, sink = opened(member=3)
    log.emit("plan", target=7, reason="two\nlines", writers=[0, 1], deadline=None)
    (line,) = sink.data
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    event = json.loads(line)
    assert (event["event"], event["time"], event["member"]) == ("plan", 0.0, 3)
    assert (event["target"], event["reason"], event["writers"]) == (7, "two\nlines", [0, 1])


def test_every_kind_can_be_written_and_an_unknown_one_is_refused_with_the_known_ones() -> None:
    log, sink = opened()
    for kind in KINDS:
        log.emit(kind)
    assert [event["event"] for event in sink.events] == list(KINDS)
    with pytest.raises(ValueError, match=r"Expected an event kind.*restore.*Received: 'restored'"):
        EventLog(0).emit("restored")


def test_events_from_before_the_opening_come_first_and_in_order() -> None:
    log, sink = EventLog(0, itertools.count(0.0).__next__), Lines()
    log.emit("notice", number=1)
    log.emit("notice", number=2)
    log.open(1, sink)
    log.emit("start", number=3)
    assert [event["number"] for event in sink.events] == [1, 2, 3]
    assert [event["time"] for event in sink.events] == [0.0, 1.0, 2.0]  # when they happened


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), StoreUnavailable("No space left")])
def test_what_could_not_be_written_is_written_with_the_next_event(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    log, sink = EventLog(0), Lines(error)
    log.emit("notice")
    log.open(1, sink)
    with caplog.at_level(logging.INFO, "keras_preempt"):
        log.emit("plan")
        log.emit("commit")
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        sink.error = None
        log.emit("exit")
    log.close()
    assert [event["event"] for event in sink.events] == ["notice", "plan", "commit", "exit"]
    assert [record.message for record in caplog.records][1:] == ["The events file can be written again."]
    assert "No space left" in caplog.text


def test_the_end_tries_once_more_and_says_what_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    log, sink = EventLog(0), Lines(OSError(28, "No space left on device"))
    log.open(1, sink)
    log.emit("commit")
    sink.error = None
    log.close()
    assert [event["event"] for event in sink.events] == ["commit"]
    log, sink = EventLog(0), Lines(OSError(28, "No space left on device"))
    log.open(1, sink)
    log.emit("commit")
    log.emit("exit")
    log.close()
    assert "lacks 2 events" in caplog.text
    assert sink.closed


def test_what_waits_for_a_log_that_stays_unwritable_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_KEPT", 1000)
    log, sink = EventLog(0), Lines(OSError(28, "No space left on device"))
    log.open(1, sink)
    for _ in range(100):
        log.emit("commit")
    sink.error = None
    log.emit("exit")
    assert 0 < len(b"".join(sink.data)) <= 1000


def test_an_event_after_the_end_changes_nothing_and_fails_nothing() -> None:
    log, sink = opened()
    log.close()
    log.emit("notice")
    log.close()
    assert sink.data == []
    assert sink.closed


def test_threads_never_mix_their_lines() -> None:
    log, sink = EventLog(0), Lines()

    def tell(number: int) -> None:
        for index in range(200):
            log.emit("hold", thread=number, index=index)

    with ThreadPoolExecutor(4) as pool:
        told = pool.map(tell, range(4))
        log.open(1, sink)
    list(told)  # Raises what a thread has raised.
    assert len(sink.events) == 800
    for number in range(4):
        assert [e["index"] for e in sink.events if e["thread"] == number] == list(range(200))


def test_events_are_on_disk_before_the_log_is_closed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "run")
    store.prepare()
    log = EventLog(0)
    log.open(1, store.append_log("events/00001.w00000.jsonl"))
    log.emit("start", members=1)
    assert json.loads((tmp_path / "run/events/00001.w00000.jsonl").read_text())["event"] == "start"
    log.close()


@pytest.fixture(params=["directory", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "directory":
        made: Store = LocalStore(tmp_path / "run")
        made.prepare()
        yield made
        return
    with FakeGcs() as gcs:
        made = GcsStore("gs://bucket/run", staging_dir=tmp_path, connect=gcs.client)
        yield made
        made.close()


def test_events_of_all_workers_and_starts_are_read_back_in_the_order_of_their_times(store: Store) -> None:
    clock = itertools.count(1.0).__next__
    for incarnation in (1, 2):
        logs = [EventLog(member, clock) for member in (0, 1)]
        for member, log in enumerate(logs):
            log.open(incarnation, store.append_log(log_name(incarnation, member)))
        logs[1].emit("start")
        logs[0].emit("start")
        logs[1].emit("exit", saved=None)
        for log in logs:
            log.close()
    told = [(e["time"], e["incarnation"], e["member"], e["event"]) for e in read(store)]
    assert told == [
        (1.0, 1, 1, "start"),
        (2.0, 1, 0, "start"),
        (3.0, 1, 1, "exit"),
        (4.0, 2, 1, "start"),
        (5.0, 2, 0, "start"),
        (6.0, 2, 1, "exit"),
    ]


def test_segments_are_read_in_their_order_also_beyond_those_of_four_digits(store: Store) -> None:
    for number in (2, 10000, 9999):
        line = f'{{"event":"hold","time":1.0,"member":0,"number":{number}}}\n'
        store.create(f"events/00001.w00000-{number:04d}.jsonl", line.encode())
    assert [event["number"] for event in read(store)] == [2, 9999, 10000]


def test_half_written_lines_and_lines_that_are_no_events_are_skipped(store: Store) -> None:
    good = b'{"event":"start","time":1.0,"member":0}\n'
    junk = b'[]\n{"event":"start"}\n{"event":"start","time":NaN}\n{"event":["start"],"time":1}\n\xff\n\n'
    store.create("events/00001.w00000.jsonl", junk + b"[" * 99999 + b"\n" + good + b'{"event":"sta')
    for name in ("thesis.txt", "1.w0.jsonl", "00001.w00000-1.jsonl", "00001.w00001.jsonl/inner"):
        store.create(f"events/{name}", good)
    assert [event["event"] for event in read(store)] == ["start"]


def test_a_log_that_would_fill_the_memory_is_not_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras_preempt.report.events.LARGEST", 10)
    store.create("events/00001.w00000.jsonl", b"{}\n" * 10)
    with pytest.raises(TooLarge):
        read(store)


def at(step: int) -> Position:
    return Position(0, "train", step, step)


def test_the_first_step_is_reported_once_and_not_before_it_is_done() -> None:
    told, sink = opened()
    milestones = Milestones(told)
    milestones.passed(at(7))
    assert not milestones.awaits_step
    milestones.ready(at(7), epochs=2, ahead=None)
    milestones.passed(at(7))  # Before the step, such as where the epoch begins.
    assert milestones.awaits_step
    for step in (8, 9, 10):
        milestones.passed(at(step))
        assert not milestones.awaits_step
    assert [event["event"] for event in sink.events] == ["ready", "first_step"]
    assert sink.events[1]["step"] == 8


def test_a_start_reports_what_came_before_it_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    told, sink = opened()
    milestones = Milestones(told)
    ticks = iter([100.0, 103.0, 110.0, 114.0, 120.0])
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: next(ticks))
        for _ in range(2):  # Such as a share, and what comes from the others.
            with milestones.reading():
                pass
    milestones.started(incarnation=3, members=2)
    (start,) = sink.events
    assert (start["event"], start["incarnation"], start["members"]) == ("start", 3, 2)
    assert start["process"]["pid"] == os.getpid()
    assert start["started_at"] < start["began_at"]
    assert (start["read_at"], start["read_seconds"]) == (100.0, 7.0)


def test_a_child_of_the_process_does_not_report_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    told, sink = opened()
    milestones = Milestones(told)
    owner = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: owner + 1)
    milestones.end("an exception", lambda: pytest.fail("asked in a child"))
    assert sink.events == []
    monkeypatch.undo()
    milestones.end("an exception", lambda: 12)
    (end,) = sink.events
    assert (end["event"], end["reason"], end["step"]) == ("end", "an exception", 12)
