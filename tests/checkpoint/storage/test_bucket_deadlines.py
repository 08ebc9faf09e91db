"""A signal and a deadline that come while a bucket is silent; and what is left after the end."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage.bucket import BucketStore
from keras_preempt.testing.buckets.fake import FakeBucket
from tests.checkpoint.storage.buckets import (
    CALLS,
    FAKES,
    LONG,
    fake_bucket,
    new_store,
    put_what_calls_ask_for,
    wait_until,
    write,
)

STALL = 60.0  # seconds; none of the calls waits so long


@contextmanager
def signals_sent(every: float) -> Iterator[list[float]]:
    """Sends signals to this process; yields after how many seconds each was heard."""
    sent, heard, ends = [0.0], list[float](), threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append(time.monotonic() - sent[0]))

    def send() -> None:
        while not ends.wait(every):
            sent[0] = time.monotonic()
            os.kill(os.getpid(), signal.SIGUSR1)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield heard
    finally:
        ends.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("scheme", FAKES)
def test_signals_are_heard_at_once_and_the_deadline_ends_a_call_to_a_silent_service(
    scheme: str, call: str, tmp_path: Path
) -> None:
    with fake_bucket(scheme) as fake:
        put_what_calls_ask_for(fake)
        store = new_store(fake, tmp_path)
        store.children("")
        fake.fail_next("stall", times=10_000, match="run", stall_seconds=STALL)
        with signals_sent(every=0.3) as heard:
            store.deadline = time.monotonic() + 1.5
            with pytest.raises(StoreUnavailable, match=r"Expected to .* in \w+://bucket/run\. Received: "):
                CALLS[call](store)
            late = time.monotonic() - store.deadline
        store.close()
    assert len(heard) >= 3
    assert sorted(heard)[1] < 0.05, "two of them, since the machine may be busy"
    # `prepare` makes one call after the other, each of which gets a last chance.
    assert late < (0.5 if scheme != "gs" and call != "prepare" else 2.5)


@pytest.mark.parametrize("call", CALLS)
def test_a_notice_that_comes_while_a_call_hangs_ends_it_in_time(
    fake: FakeBucket, remote: BucketStore, call: str
) -> None:
    put_what_calls_ask_for(fake)
    remote.children("")
    fake.fail_next("stall", times=10_000, match="run", stall_seconds=STALL)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(CALLS[call], remote)
        wait_until(lambda: fake.pending_faults < 10_000)
        remote.deadline = deadline = time.monotonic() + 1.5
        with pytest.raises(StoreUnavailable):
            done.result(30)
        assert time.monotonic() < deadline + (0.5 if call != "prepare" else 2.5)


@pytest.mark.parametrize("what", ["small", "large", "read"])
def test_a_request_that_hangs_when_notice_comes_is_tried_again_in_time(
    fake: FakeBucket, remote: BucketStore, what: str
) -> None:
    data = b"small" if what == "small" else bytes(LONG)
    if what == "read":
        fake.put("bucket", "run/a", data)
        remote.stat("a")
    fake.fail_next("stall", match="run/a", stall_seconds=STALL)
    with ThreadPoolExecutor(1) as pool:
        done = (
            pool.submit(lambda: remote.open("a").close())
            if what == "read"
            else pool.submit(write, remote, "a", data)
        )
        wait_until(lambda: fake.pending_faults == 0)
        remote.deadline = deadline = time.monotonic() + 5
        done.result(30)
        assert time.monotonic() < deadline
    assert fake.content("bucket", "run/a") == data


@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_a_slow_upload_that_moves_is_not_cut(scheme: str, tmp_path: Path) -> None:
    """It takes more than half of the time that is left, and nothing is sent again."""
    with fake_bucket(scheme, bytes_per_second=2e6) as fake:
        store = new_store(fake, tmp_path)
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(write, store, "a", bytes(12_000_000))
            wait_until(lambda: len(fake.requests) == 1)
            store.deadline = time.monotonic() + 11
            done.result(30)
        assert [request.method for request in fake.requests] == ["PUT"]
        store.close()


def test_after_the_end_no_thread_and_no_connection_is_left(fake: FakeBucket, tmp_path: Path) -> None:
    before, sockets = set(threading.enumerate()), _sockets()
    store = new_store(fake, tmp_path)
    put_what_calls_ask_for(fake)
    for name in set(CALLS) - {"create"}:  # Another call creates the same file.
        CALLS[name](store)
    assert any(thread.name == "keras_preempt-bucket-calls" for thread in threading.enumerate())
    store.close()
    # The fake has a thread for each connection until that ends.
    wait_until(
        lambda: {t.name for t in set(threading.enumerate()) - before if "keras_preempt" in t.name} == set()
    )
    wait_until(lambda: _sockets() <= sockets)
    store.create("again", b"x")
    store.close()
    wait_until(lambda: _sockets() <= sockets)


def _sockets() -> int:
    """How many connections this process has; those of the fake are among them."""
    return sum(map(_is_socket, os.listdir("/proc/self/fd")))


def _is_socket(descriptor: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
    except FileNotFoundError:  # It has been closed meanwhile.
        return False
