"""Outages of a bucket that end before the deadline of what is under way."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from keras_preempt.checkpoint.storage.bucket import BucketStore
from keras_preempt.testing import Faults
from tests.checkpoint.storage.buckets import (
    CALLS,
    FAKES,
    LONG,
    fake_bucket,
    new_store,
    put_what_calls_ask_for,
    write,
)

SHORT = (4.0, 7.0)  # seconds of an outage and of the deadline
LONGER = [(7.0, 15.0), (20.0, 30.0)]
AT_ONCE = 6


READS = [CALLS[name] for name in ("read", "open", "stat", "list", "children", "delete")]
WRITES: list[Callable[[BucketStore], object]] = [
    lambda store, n=n: write(store, f"part-{n}", bytes(1000 if n else LONG))  # type: ignore[misc]
    for n in range(AT_ONCE)
]


@pytest.mark.parametrize(
    ("kind", "calls", "seconds"),
    [
        pytest.param(
            kind,
            calls,
            seconds,
            marks=[] if (kind, calls, seconds) == ("503", WRITES, SHORT) else pytest.mark.chaos,
        )
        for kind in ("503", "reset", "stall")
        for calls in (WRITES, READS)
        for seconds in (SHORT, *LONGER)
    ],
)
@pytest.mark.parametrize("scheme", FAKES)
@pytest.mark.usefixtures("quick")
def test_a_call_is_tried_again_until_its_deadline(
    tmp_path: Path,
    scheme: str,
    kind: str,
    calls: list[Callable[[BucketStore], object]],
    seconds: tuple[float, float],
) -> None:
    outage, deadline = seconds
    with fake_bucket(scheme) as fake:
        put_what_calls_ask_for(fake)
        fake.faults = Faults(rate=1.0, kinds=(kind,), stall_seconds=10 * deadline)
        recovery = threading.Timer(outage, setattr, (fake, "faults", None))
        recovery.start()

        def make(call: Callable[[BucketStore], object]) -> None:
            with contextlib.closing(new_store(fake, tmp_path)) as store:
                store.deadline = time.monotonic() + deadline
                call(store)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(make, calls))
        recovery.join()
        parts = [name for name in fake.objects("bucket") if "part-" in name]
    assert len(parts) == (AT_ONCE if calls is WRITES else 0)
