"""Notice of a preemption comes while a bucket is being used, which began with all the time in the world."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
from keras_preempt.checkpoint.storage.gcs_retry import retry_within, timeouts_of_this_try
from keras_preempt.testing import FakeGcs
from tests.checkpoint.storage.buckets import CALLS, LONG, new_store, put_what_calls_ask_for, wait_until, write
from tests.checkpoint.test_commit import FakeTime

STALL = 60.0  # seconds; none of the calls waits so long


def _watches() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "keras_preempt-gcs-watch"]


@pytest.mark.parametrize("what", ["upload_id=", "alt=media", "uploadType=multipart"])
def test_a_request_that_hangs_when_notice_comes_is_tried_again_in_time(
    gcs: FakeGcs, bucket: GcsStore, what: str
) -> None:
    data = bytes(LONG) if what != "uploadType=multipart" else b"small"
    if what == "alt=media":
        gcs.put("bucket", "run/a", data)
    gcs.fail_next("stall", match=what, stall_seconds=STALL)

    def call() -> None:
        if what == "alt=media":
            bucket.open("a").close()
        else:
            write(bucket, "a", data)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(call)
        wait_until(lambda: gcs.pending_faults == 0)
        bucket.deadline = deadline = time.monotonic() + 5
        done.result(30)
        assert time.monotonic() < deadline
    assert gcs.content("bucket", "run/a") == data
    bucket.close()
    assert _watches() == []


@pytest.mark.parametrize("notice", ["before", "meanwhile"])
def test_no_call_lasts_much_longer_than_the_deadline_when_the_service_is_silent(
    gcs: FakeGcs, tmp_path: Path, notice: str
) -> None:
    put_what_calls_ask_for(gcs)
    gcs.fail_next("stall", times=10_000, match="bucket", stall_seconds=STALL)
    stores = {call: new_store(gcs, tmp_path) for call in CALLS}
    begun = time.monotonic()

    def notify() -> None:
        for store in stores.values():
            store.deadline = begun + 2

    with ThreadPoolExecutor(len(CALLS)) as pool:
        if notice == "before":
            notify()
        calls = {call: pool.submit(CALLS[call], store) for call, store in stores.items()}
        if notice == "meanwhile":
            wait_until(lambda: len(gcs.requests) >= len(CALLS))
            begun = time.monotonic()
            notify()
        for call, future in calls.items():
            with pytest.raises(StoreUnavailable, match=r"Expected to .* in gs://bucket/run\. Received: "):
                future.result(30)
            assert time.monotonic() - begun < 2 + 2 * budget.LAST_CHANCE + 2, call
    for store in stores.values():
        store.close()


def test_a_slow_upload_that_moves_is_not_cut(tmp_path: Path) -> None:
    """Twice as slow as the silence that is borne at the end, and yet nothing is sent again."""
    with FakeGcs(buckets=("bucket",), bytes_per_second=1e6) as gcs:
        store = new_store(gcs, tmp_path)
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(write, store, "a", bytes(2_000_000))
            wait_until(lambda: bool(len(store._connections._opened)))
            store.deadline = time.monotonic() + 3
            done.result(30)
        assert [request.status for request in gcs.requests] == [200]
        store.close()


def test_a_request_waits_no_longer_than_its_budget_has_left_whatever_the_client_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budget, "_chance", random.Random(0))  # How often it is tried depends on the pauses.
    clock = FakeTime()
    made = Budget(6, clock=clock.clock, wait=clock.wait)
    waited: list[tuple[float, float]] = []

    def silent(self: Any, request: Any, stream: bool, timeout: tuple[float, float], *rest: Any) -> Any:
        waited.append(timeout)
        clock.now += timeout[1]
        raise requests.exceptions.ReadTimeout("silence")

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", silent)
    request = requests.Request("GET", "http://127.0.0.1/").prepare()
    with pytest.raises(requests.exceptions.ReadTimeout):
        retry_within(made)(partial(Connections(1).send, request, timeout=(60, 60)))()
    assert waited[0] == (2.0, 2.0)  # A third of what is left.
    assert len(waited) > 4
    assert timeouts_of_this_try.get() is None
    assert [read for _, read in waited] == sorted((read for _, read in waited), reverse=True)
    assert clock.now <= 6 + budget.LAST_CHANCE


def test_without_a_deadline_and_after_it_nothing_watches(gcs: FakeGcs, bucket: GcsStore) -> None:
    bucket.create("a", b"")
    assert _watches() == []
    bucket.deadline = time.monotonic() + 100
    assert len(_watches()) == 1
    bucket.deadline = None  # the notice was withdrawn
    wait_until(lambda: _watches() == [])
    bucket.deadline = time.monotonic() - 100  # it has passed, and calls still get a chance
    wait_until(lambda: _watches() == [])
    bucket.create("b", b"")
    assert sorted(gcs.objects("bucket")) == ["run/a", "run/b"]
    assert bucket.read("a", limit=9) == b""
    bucket.deadline = time.monotonic() + 100
    bucket.close()
    assert _watches() == []
