"""Notice of a preemption comes while a bucket is being used, which began with all the time in the world."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint import budget
from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.gcs_store import GcsStore
from keras_preempt.testing import FakeGcs
from tests.checkpoint.test_gcs_faults import CALLS, new_store

LARGE = 9 << 20  # bytes: more than goes up or down in one request
STALL = 60.0  # seconds; none of the calls waits so long


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGcs]:
    monkeypatch.setattr(budget, "_FIRST_DELAY", 0.01)
    with FakeGcs(buckets=("bucket",)) as server:
        yield server


def _write(store: GcsStore, name: str, data: bytes) -> None:
    with store.writer(name) as writer:
        writer.write(data)


def _wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it does not come to pass"
        time.sleep(0.01)


def _watches() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "keras_preempt-gcs-watch"]


@pytest.mark.parametrize("what", ["upload_id=", "alt=media", "uploadType=multipart"])
def test_a_request_that_hangs_when_notice_comes_is_tried_again_in_time(
    gcs: FakeGcs, tmp_path: Path, what: str
) -> None:
    data = bytes(LARGE) if what != "uploadType=multipart" else b"small"
    store = new_store(gcs, tmp_path)
    if what == "alt=media":
        gcs.put("bucket", "run/a", data)
    gcs.fail_next("stall", match=what, stall_seconds=STALL)

    def call() -> None:
        if what == "alt=media":
            store.open("a").close()
        else:
            _write(store, "a", data)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(call)
        _wait_until(lambda: gcs.pending_faults == 0)
        begun = time.monotonic()
        store.deadline = time.monotonic() + 6
        done.result(30)
        took = time.monotonic() - begun
    assert took < 6
    assert gcs.content("bucket", "run/a") == data
    store.close()
    assert _watches() == []


def test_no_call_that_was_under_way_when_notice_came_lasts_much_longer_than_the_deadline(
    gcs: FakeGcs, tmp_path: Path
) -> None:
    for name in ("there", "folder/there"):
        gcs.put("bucket", f"run/{name}", b"x")
    gcs.put("bucket", "run/large", bytes(LARGE))
    gcs.fail_next("stall", times=10_000, match="bucket", stall_seconds=STALL)
    stores = {call: new_store(gcs, tmp_path) for call in CALLS}
    with ThreadPoolExecutor(len(CALLS)) as pool:
        calls: dict[str, Future[Any]] = {
            call: pool.submit(CALLS[call], store) for call, store in stores.items()
        }
        _wait_until(lambda: len(gcs.requests) >= len(CALLS))
        begun = time.monotonic()
        for store in stores.values():
            store.deadline = time.monotonic() + 3
        for call, future in calls.items():
            with pytest.raises(StoreUnavailable, match=r"Expected to .* in gs://bucket/run\. Received: "):
                future.result(30)
            assert time.monotonic() - begun < 3 + 2 * budget.LAST_CHANCE + 2, call
    for store in stores.values():
        store.close()


def test_a_slow_upload_that_moves_is_not_cut(tmp_path: Path) -> None:
    """Twice as slow as the silence that is borne at the end, and yet nothing is sent again."""
    with FakeGcs(buckets=("bucket",), bytes_per_second=1e6) as gcs:
        store = new_store(gcs, tmp_path)
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(_write, store, "a", bytes(3_000_000))
            _wait_until(lambda: bool(store._watch._sockets()))
            store.deadline = time.monotonic() + 5
            done.result(30)
        assert [request.status for request in gcs.requests] == [200]
        store.close()


def test_without_a_deadline_nothing_watches(gcs: FakeGcs, tmp_path: Path) -> None:
    store = new_store(gcs, tmp_path)
    store.create("a", b"")
    assert _watches() == []
    store.deadline = time.monotonic() + 100
    assert len(_watches()) == 1
    store.deadline = None  # the notice was withdrawn
    _wait_until(lambda: _watches() == [])
    store.deadline = time.monotonic() + 100
    store.close()
    assert _watches() == []


def test_after_the_deadline_calls_still_get_a_chance_and_nothing_watches(
    gcs: FakeGcs, tmp_path: Path
) -> None:
    store = new_store(gcs, tmp_path)
    store.create("a", b"")
    store.deadline = time.monotonic() - 100
    _wait_until(lambda: _watches() == [])
    store.create("b", b"")
    assert sorted(gcs.objects("bucket")) == ["run/a", "run/b"]
    store.close()
