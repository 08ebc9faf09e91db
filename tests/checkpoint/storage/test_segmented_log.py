"""A log in a store that cannot append."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_preempt.checkpoint.errors import StoreUnavailable, WriteUncertain
from keras_preempt.checkpoint.storage import segmented_log
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.storage.segmented_log import SegmentedLog, segment_name
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


def begun(store: Slow, *lines: bytes) -> SegmentedLog:
    log = SegmentedLog(store, NAME)
    for line in lines:
        log.write(line)
    return log


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert [thread for thread in threading.enumerate() if thread.name == "keras_preempt-events"] == []


def test_lines_are_handed_over_before_the_log_is_closed_and_the_rest_without_waiting_for_the_second_to_end(
    store: Slow,
) -> None:
    log = begun(store, b"1\n")
    store.wait_for(b"1\n")
    log.write(b"2\n")
    store.wait_for(b"1\n2\n")
    log.write(b"3\n")
    began = time.monotonic()
    log.close()
    assert time.monotonic() - began < segmented_log.INTERVAL / 2
    assert store.content() == b"1\n2\n3\n"
    segments = [segment_name(NAME, number) for number in (1, 2, 3)]
    assert sorted(store.files) == segments
    assert segments[0] == "events/00001.w00000-0001.jsonl"


def test_a_burst_makes_few_segments_at_most_one_a_second(store: Slow) -> None:
    lines = [b"%d\n" % number for number in range(1000)]
    log = begun(store, *lines[:500])
    store.wait_for(b"".join(lines[:500]))
    for line in lines[500:]:
        log.write(line)
    store.wait_for(b"".join(lines))
    log.close()
    assert len(store.files) <= 4
    gaps = [later - earlier for earlier, later in zip(store.times, store.times[1:], strict=False)]
    assert all(gap > segmented_log.INTERVAL * 0.9 for gap in gaps)


def test_writing_never_waits_for_the_storage(store: Slow) -> None:
    store.may_answer.clear()
    began = time.monotonic()
    log = begun(store, *[b"x\n"] * 1000)
    assert time.monotonic() - began < 5
    store.may_answer.set()
    log.close()
    assert store.content() == b"x\n" * 1000


def test_a_log_goes_on_after_the_segments_that_are_there(store: Slow) -> None:
    for name in (segment_name(NAME, 7), "events/00001.w00001-0099.jsonl", "events/00011.w00000-0099.jsonl"):
        store.files[name] = b""
    begun(store, b"x").close()
    assert store.files[segment_name(NAME, 8)] == b"x"


def test_two_ends_of_one_log_lose_nothing(store: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "children", lambda _: [])  # each looks before the others have written
    for log in [begun(store, b"x") for _ in range(4)]:
        log.close()
    assert store.content() == b"xxxx"
    assert len(store.files) == 4


def test_lines_are_kept_while_the_storage_fails(store: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmented_log, "PATIENCE", 0.05)
    store.broken = True
    log = begun(store, b"1\n", b"2\n")
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
    log = begun(store, *lines)
    with pytest.raises(StoreUnavailable, match=why):
        log.close()
    log.close()


def test_closing_waits_no_longer_than_the_deadline(store: Slow) -> None:
    store.may_answer.clear()
    log = begun(store, b"x\n")
    began = time.monotonic()
    store.deadline = began + 0.5
    with pytest.raises(StoreUnavailable, match="did not answer in time"):
        log.close()
    assert time.monotonic() - began < 5
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


@pytest.mark.parametrize(
    ("carries_out", "theirs", "stored"),
    [(True, None, b"1\n2\n"), (False, None, b"1\n2\n"), (True, b"theirs\n", b"theirs\n1\n2\n")],
)
def test_lines_that_may_be_stored_are_not_stored_twice_and_a_segment_of_somebody_else_is_left_to_them(
    store: Slow, monkeypatch: pytest.MonkeyPatch, carries_out: bool, theirs: bytes | None, stored: bytes
) -> None:
    monkeypatch.setattr(segmented_log, "PATIENCE", 0.05)
    create = store.create

    def unanswered(name: str, data: bytes) -> FileInfo:
        monkeypatch.setattr(store, "create", create)  # Only the first write is not answered.
        if carries_out:
            create(name, data if theirs is None else theirs)
        raise WriteUncertain("no answer")

    monkeypatch.setattr(store, "create", unanswered)
    log = begun(store, b"1\n", b"2\n")
    store.wait_for(stored)
    log.close()
    assert store.content() == stored
    assert min(store.files) == segment_name(NAME, 1)
