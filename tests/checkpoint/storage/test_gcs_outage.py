"""Outages of a bucket that end before the deadline of what is under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.testing import FakeGcs, Faults

DEADLINE = 12.0  # seconds
OUTAGE = 7.5  # seconds: more than half of it, and the rest is enough on a machine that is busy
AT_ONCE = 6
LARGE = 9 << 20  # bytes: goes up in two pieces


def _through_an_outage(
    gcs: FakeGcs, tmp_path: Path, kind: str, call: Callable[[GcsStore, int], object]
) -> list[str]:
    """Makes several calls at once when the outage begins; returns why those failed that did."""
    stores = [GcsStore("gs://bucket/run", staging_dir=tmp_path, connect=gcs.client) for _ in range(AT_ONCE)]
    gcs.faults = Faults(rate=1.0, kinds=(kind,), stall_seconds=10 * DEADLINE)
    recovery = threading.Timer(OUTAGE, setattr, (gcs, "faults", None))
    recovery.start()

    def make(number: int) -> str:
        store = stores[number]
        store.deadline = time.monotonic() + DEADLINE
        try:
            call(store, number)
        except StoreUnavailable as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(AT_ONCE) as pool:
        failures = [failure for failure in pool.map(make, range(AT_ONCE)) if failure]
    recovery.join()
    for store in stores:
        store.close()
    return failures


@pytest.mark.parametrize(
    "kind", ["503", *(pytest.param(k, marks=pytest.mark.chaos) for k in ("reset", "stall"))]
)
def test_a_write_is_tried_again_until_its_deadline(tmp_path: Path, kind: str) -> None:
    def write(store: GcsStore, number: int) -> None:
        with store.writer(f"part-{number}") as writer:
            writer.write(bytes(LARGE if number == 0 else 1000))

    with FakeGcs() as gcs:
        assert _through_an_outage(gcs, tmp_path, kind, write) == []
        assert sorted(gcs.objects("bucket")) == [f"run/part-{number}" for number in range(AT_ONCE)]


@pytest.mark.parametrize("kind", [pytest.param("503", marks=pytest.mark.chaos), "stall"])
def test_a_read_is_tried_again_until_its_deadline(tmp_path: Path, kind: str) -> None:
    calls: list[Callable[[GcsStore], object]] = [
        lambda store: store.read("small", limit=10),
        lambda store: store.open("large").close(),
        lambda store: store.stat("small"),
        lambda store: store.list(""),
        lambda store: store.children(""),
        lambda store: store.delete("gone"),
    ]
    with FakeGcs() as gcs:
        for name, size in (("small", 10), ("large", LARGE), ("gone", 1)):
            gcs.put("bucket", f"run/{name}", bytes(size))
        assert _through_an_outage(gcs, tmp_path, kind, lambda store, number: calls[number](store)) == []
