"""Notice of a preemption comes while a bucket is being used, which began with all the time in the world."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
import requests.adapters

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage import budget
from keras_preempt.checkpoint.storage.budget import Budget
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.storage.gcs_connections import Connections
from keras_preempt.testing import FakeGcs
from tests.checkpoint.storage.test_gcs_faults import CALLS, new_store

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


def test_a_request_waits_no_longer_than_its_budget_has_left_whatever_the_client_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time_now = [1000.0]
    made = Budget(
        6, clock=lambda: time_now[0], wait=lambda seconds: time_now.append(time_now.pop() + seconds)
    )
    connections = Connections(1, lambda: None)
    waited: list[tuple[float, float]] = []

    def silent(self: Any, request: Any, stream: bool, timeout: tuple[float, float], *rest: Any) -> Any:
        waited.append(timeout)
        time_now.append(time_now.pop() + timeout[1])
        raise requests.exceptions.ReadTimeout("silence")

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", silent)
    request = requests.Request("GET", "http://127.0.0.1/").prepare()
    with pytest.raises(requests.exceptions.ReadTimeout):
        made.retry()(lambda: connections.send(request, timeout=(60, 60)))()
    assert waited[0] == (2.0, 2.0)  # A third of what is left.
    assert [read for _, read in waited] == sorted((read for _, read in waited), reverse=True)
    assert time_now[0] <= 1006 + budget.LAST_CHANCE


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
