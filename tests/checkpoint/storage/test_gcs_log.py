"""A log in a store that cannot append."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_preempt.checkpoint.errors import StoreUnavailable, WriteUncertain
from keras_preempt.checkpoint.storage import gcs_log
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.storage.gcs_log import GcsLog, segment_name
from keras_preempt.checkpoint.storage.store import FileInfo
from keras_preempt.testing import FakeGcs
from tests.checkpoint.campaign_store import MemoryStore

NAME = "events/00001.w00000.jsonl"


class Slow(MemoryStore):
    """Segments in memory; can be made slow or broken."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []
        self.broken = False
        self.changed = threading.Condition()
        self.may_answer = threading.Event()
        self.may_answer.set()

    def create(self, name: str, data: bytes) -> FileInfo:
        assert self.may_answer.wait(30)
        if self.broken:
            raise StoreUnavailable("no network")
        with self.changed:
            made = super().create(name, data)
            self.times.append(time.monotonic())
            self.changed.notify_all()
        return made

    def wait_for(self, content: bytes) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.content() == content, 30)

    def content(self) -> bytes:
        return b"".join(self.files[name] for name in sorted(self.files))


@pytest.fixture
def store() -> Slow:
    return Slow()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert [thread for thread in threading.enumerate() if thread.name == "keras_preempt-events"] == []


def test_lines_are_handed_over_before_the_log_is_closed(store: Slow) -> None:
    log = GcsLog(store, NAME)
    log.write(b"1\n")
    store.wait_for(b"1\n")
    log.write(b"2\n")
    store.wait_for(b"1\n2\n")
    log.close()
    assert sorted(store.files) == ["events/00001.w00000-0001.jsonl", segment_name(NAME, 2)]


def test_a_burst_makes_few_segments_at_most_one_a_second(store: Slow) -> None:
    log = GcsLog(store, NAME)
    lines = [b"%d\n" % number for number in range(1000)]
    for line in lines[:500]:
        log.write(line)
    store.wait_for(b"".join(lines[:500]))
    for line in lines[500:]:
        log.write(line)
    store.wait_for(b"".join(lines))
    log.close()
    assert len(store.files) <= 4
    gaps = [later - earlier for earlier, later in zip(store.times, store.times[1:], strict=False)]
    assert all(gap > gcs_log.INTERVAL * 0.9 for gap in gaps)


def test_closing_hands_over_the_rest_without_waiting_for_the_second_to_end(store: Slow) -> None:
    log = GcsLog(store, NAME)
    log.write(b"1\n")
    store.wait_for(b"1\n")
    log.write(b"2\n")
    begun = time.monotonic()
    log.close()
    assert time.monotonic() - begun < gcs_log.INTERVAL / 2
    assert store.content() == b"1\n2\n"


def test_writing_never_waits_for_the_storage(store: Slow) -> None:
    store.may_answer.clear()
    log = GcsLog(store, NAME)
    begun = time.monotonic()
    for _ in range(1000):
        log.write(b"x\n")
    assert time.monotonic() - begun < 5
    store.may_answer.set()
    log.close()
    assert store.content() == b"x\n" * 1000


def test_a_log_goes_on_after_the_segments_that_are_there(store: Slow) -> None:
    for name in (segment_name(NAME, 7), "events/00001.w00001-0099.jsonl", "events/00011.w00000-0099.jsonl"):
        store.files[name] = b""
    log = GcsLog(store, NAME)
    log.write(b"x")
    log.close()
    assert store.files[segment_name(NAME, 8)] == b"x"


def test_two_ends_of_one_log_lose_nothing(store: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "children", lambda _: [])  # each looks before the others have written
    logs = [GcsLog(store, NAME) for _ in range(4)]
    for log in logs:
        log.write(b"x")
    for log in logs:
        log.close()
    assert store.content() == b"xxxx"
    assert len(store.files) == 4


def test_lines_are_kept_while_the_storage_fails(store: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs_log, "PATIENCE", 0.05)
    store.broken = True
    log = GcsLog(store, NAME)
    log.write(b"1\n")
    log.write(b"2\n")
    store.broken = False
    log.write(b"3\n")
    store.wait_for(b"1\n2\n3\n")
    log.close()


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([b"12\n"], "3 bytes that could not be handed over.*no network"),
        ([b"x" * (1 << 20)] * 20, "16 lost lines"),
    ],
)
def test_lines_that_cannot_be_handed_over_are_an_error_at_the_end_and_memory_stays_bounded(
    store: Slow, lines: list[bytes], why: str
) -> None:
    store.broken = True
    log = GcsLog(store, NAME)
    for line in lines:
        log.write(line)
    with pytest.raises(StoreUnavailable, match=why):
        log.close()
    log.close()


def test_closing_waits_no_longer_than_the_deadline(store: Slow) -> None:
    store.may_answer.clear()
    log = GcsLog(store, NAME)
    log.write(b"x\n")
    store.deadline = time.monotonic() + 0.5
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable, match="did not answer in time"):
        log.close()
    assert time.monotonic() - begun < 5
    store.may_answer.set()
    assert log._thread is not None
    log._thread.join(30)


def test_closing_the_store_hands_over_its_logs(tmp_path: Path) -> None:
    with FakeGcs() as gcs:
        store = GcsStore("gs://bucket/run", staging_dir=tmp_path, connect=gcs.client)
        log = store.append_log(NAME)
        log.write(b"1\n")
        log.write(b"2\n")
        store.close()
        objects = gcs.objects("bucket")
        assert b"".join(gcs.content("bucket", name) for name in objects) == b"1\n2\n"
        assert all(name.startswith("run/events/00001.w00000-000") for name in objects)


class Unanswered(Slow):
    """Does not answer the first write; stores something under its name nevertheless, or nothing."""

    def __init__(self, *, carries_out: bool, theirs: bytes | None = None) -> None:
        super().__init__()
        self._carries_out = carries_out
        self._theirs = theirs
        self._asked = 0

    def create(self, name: str, data: bytes) -> FileInfo:
        self._asked += 1
        if self._asked > 1:
            return super().create(name, data)
        if self._carries_out:
            super().create(name, data if self._theirs is None else self._theirs)
        raise WriteUncertain("no answer")


@pytest.mark.parametrize(
    ("carries_out", "theirs", "stored"),
    [(True, None, b"1\n2\n"), (False, None, b"1\n2\n"), (True, b"theirs\n", b"theirs\n1\n2\n")],
)
def test_lines_that_may_be_stored_are_not_stored_twice_and_a_segment_of_somebody_else_is_left_to_them(
    monkeypatch: pytest.MonkeyPatch, carries_out: bool, theirs: bytes | None, stored: bytes
) -> None:
    monkeypatch.setattr(gcs_log, "PATIENCE", 0.05)
    store = Unanswered(carries_out=carries_out, theirs=theirs)
    log = GcsLog(store, NAME)
    log.write(b"1\n")
    log.write(b"2\n")
    store.wait_for(stored)
    log.close()
    assert store.content() == stored
    assert min(store.files) == segment_name(NAME, 1)
