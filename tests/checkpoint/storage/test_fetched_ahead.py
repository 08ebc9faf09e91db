"""Files of a bucket that are fetched before they are opened."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from keras_preempt.checkpoint.errors import NotFound, StoreUnavailable
from keras_preempt.checkpoint.storage.bucket import BucketStore
from keras_preempt.testing.buckets.fake import FakeBucket
from tests.checkpoint.storage.buckets import LARGE, write

DATA = np.random.default_rng(3).bytes(LARGE)


def gets(fake: FakeBucket) -> int:
    return sum(request.method == "GET" for request in fake.requests)


def content(store: BucketStore, name: str) -> bytes:
    with store.open(name) as stream:
        return stream.read()


def staged(folder: Path) -> int:
    """How many staged files this process has open below a folder."""
    links = (each for each in Path("/proc/self/fd").iterdir())
    return sum(
        str(folder) in str(each.readlink()) and "deleted" in str(each.readlink())
        for each in links
        if each.is_symlink()
    )


def test_a_file_that_was_fetched_is_not_fetched_again(remote: BucketStore, fake: FakeBucket) -> None:
    write(remote, "folder/a", DATA)
    remote.read_ahead("folder/a")
    before = gets(fake)
    moved: list[int] = []
    with remote.open("folder/a", moved.append) as stream:
        assert stream.read() == DATA
    assert (gets(fake), moved) == (before, [LARGE])
    with remote.open("folder/a") as stream:  # It is given once.
        assert stream.read() == DATA
    assert gets(fake) > before


def test_who_opens_a_file_that_is_being_fetched_waits_for_it(remote: BucketStore, fake: FakeBucket) -> None:
    write(remote, "a", DATA)
    going, go_on = threading.Event(), threading.Event()
    fetch = remote._get

    def slow(*arguments):
        going.set()
        assert go_on.wait(20)
        return fetch(*arguments)

    vars(remote)["_get"] = slow
    with ThreadPoolExecutor() as pool:
        ahead = pool.submit(remote.read_ahead, "a")
        assert going.wait(20)
        del vars(remote)["_get"]
        opened = pool.submit(content, remote, "a")
        go_on.set()
        assert opened.result(20) == DATA
        ahead.result(20)


def test_a_file_that_is_another_one_by_now_is_fetched(remote: BucketStore) -> None:
    write(remote, "a", DATA)
    remote.read_ahead("a")
    remote.delete("a")
    write(remote, "a", DATA[::-1])
    with remote.open("a") as stream:
        assert stream.read() == DATA[::-1]


def test_what_is_opened_already_is_not_fetched_ahead(remote: BucketStore, fake: FakeBucket) -> None:
    write(remote, "a", DATA)
    write(remote, "b", DATA)
    remote.read_ahead("b")
    assert content(remote, "a") == DATA
    before = len(fake.requests)
    remote.read_ahead("a")
    assert len(fake.requests) == before


def test_what_nobody_opens_is_given_up(remote: BucketStore, tmp_path: Path) -> None:
    write(remote, "a", DATA)
    remote.read_ahead("a")
    assert staged(tmp_path) == 1
    remote.end_read_ahead()
    assert staged(tmp_path) == 0
    assert content(remote, "a") == DATA


def test_an_error_ahead_is_met_or_not_by_who_opens(remote: BucketStore) -> None:
    with pytest.raises(NotFound):
        remote.read_ahead("nothing")
    with pytest.raises(NotFound):
        remote.open("nothing")
    write(remote, "a", DATA)

    def fail(*arguments):
        raise StoreUnavailable("no connection")

    vars(remote)["_get"] = fail
    with pytest.raises(StoreUnavailable):
        remote.read_ahead("a")
    del vars(remote)["_get"]
    assert content(remote, "a") == DATA
