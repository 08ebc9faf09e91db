"""Outages of a bucket that end before the deadline of what is under way."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.testing import FakeGcs, Faults
from tests.checkpoint.storage.buckets import CALLS, LONG, new_store, put_what_calls_ask_for, write

DEADLINE = 7.0  # seconds
OUTAGE = 4.0  # seconds: more than half of it, and the rest is enough on a machine that is busy
AT_ONCE = 6


READS = [CALLS[name] for name in ("read", "open", "stat", "list", "children", "delete")]
WRITES: list[Callable[[GcsStore], object]] = [
    lambda store, n=n: write(store, f"part-{n}", bytes(1000 if n else LONG))  # type: ignore[misc]
    for n in range(AT_ONCE)
]


@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        pytest.param(kind, calls, marks=[] if (kind, calls) == ("503", WRITES) else pytest.mark.chaos)
        for kind in ("503", "reset", "stall")
        for calls in (WRITES, READS)
    ],
)
def test_a_call_is_tried_again_until_its_deadline(
    gcs: FakeGcs, tmp_path: Path, kind: str, calls: list[Callable[[GcsStore], object]]
) -> None:
    put_what_calls_ask_for(gcs)
    gcs.faults = Faults(rate=1.0, kinds=(kind,), stall_seconds=10 * DEADLINE)
    recovery = threading.Timer(OUTAGE, setattr, (gcs, "faults", None))
    recovery.start()

    def make(call: Callable[[GcsStore], object]) -> None:
        with contextlib.closing(new_store(gcs, tmp_path)) as store:
            store.deadline = time.monotonic() + DEADLINE
            call(store)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(make, calls))
    recovery.join()
    parts = [name for name in gcs.objects("bucket") if "part-" in name]
    assert len(parts) == (AT_ONCE if calls is WRITES else 0)
