"""What a bucket of any service does, and what the store makes of it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from keras_preempt.checkpoint.errors import (
    AlreadyExists,
    CheckpointError,
    CorruptCheckpoint,
    StoreUnavailable,
)
from keras_preempt.checkpoint.storage.bucket import BucketStore
from keras_preempt.testing.buckets.fake import FakeBucket
from tests.checkpoint.storage.buckets import FAKES, LARGE, large_content, scheme_of, wait_until, write

pytestmark = pytest.mark.parametrize("fake", FAKES, indirect=True)

SERVICE = {"gs": "Google Cloud Storage", "s3": "Amazon S3", "az": "Azure Blob Storage"}

WRITE = {"gs": "POST", "s3": "PUT", "az": "PUT"}
READ = {"gs": "alt=media", "s3": "GET", "az": "GET"}
DELETE = {"gs": "DELETE", "s3": "DELETE", "az": "comp=batch"}
"""What the requests of each service have that no other request has."""


# -- Writing ------------------------------------------------------------------------------------------------


def test_another_writers_file_is_not_taken_for_ours_after_a_failure(
    remote: BucketStore, fake: FakeBucket
) -> None:
    fake.put("bucket", "run/a", b"data")
    fake.fail_next("503", match="run/a")
    with pytest.raises(AlreadyExists):
        remote.create("a", b"data")


def test_a_write_that_took_effect_when_time_was_up_is_found(remote: BucketStore, fake: FakeBucket) -> None:
    # The answer is lost, no further try is let through, and only looking tells that the object is there.
    remote.deadline = time.monotonic() + 1.5
    fake.fail_next("lost-response", match=WRITE[scheme_of(fake)])
    fake.fail_next("503", times=10_000, match=WRITE[scheme_of(fake)])
    remote.create("a", b"data")
    assert fake.content("bucket", "run/a") == b"data"


# -- Reading ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["corrupted", "truncated", "reset", "503", "page", "204"])
@pytest.mark.parametrize("size", [1000, LARGE])
def test_what_is_damaged_on_the_way_down_is_read_again(
    remote: BucketStore, fake: FakeBucket, kind: str, size: int
) -> None:
    data, read = large_content()[:size], READ[scheme_of(fake)]
    write(remote, "a", data)
    remote.stat("a")
    fake.fail_next(kind, times=2, match=read)
    with remote.open("a") as stream:
        assert stream.read() == data
    fake.fail_next(kind, match=read)
    assert remote.read("a", limit=size) == data
    assert fake.pending_faults == 0


@pytest.mark.parametrize("size", [1000, LARGE])
def test_what_is_always_damaged_is_never_handed_out(remote: BucketStore, fake: FakeBucket, size: int) -> None:
    write(remote, "a", large_content()[:size])
    fake.fail_next("corrupted", times=10_000, match=READ[scheme_of(fake)])
    for read in (lambda: remote.open("a"), lambda: remote.read("a", limit=size)):
        with pytest.raises(CorruptCheckpoint, match="other sums"):
            read()


def test_a_file_is_read_as_it_was_looked_at(remote: BucketStore, fake: FakeBucket) -> None:
    remote.create("a", b"looked at")
    remote.stat("a")
    fake.put("bucket", "run/a", b"replaced!")
    with pytest.raises(CheckpointError, match="'a'"):
        remote.open("a")
    with remote.open("a") as stream:  # looked at anew
        assert stream.read() == b"replaced!"


def test_a_large_file_that_is_replaced_while_it_is_read_is_not_mixed_with_what_replaces_it(
    remote: BucketStore, fake: FakeBucket
) -> None:
    write(remote, "a", bytes(LARGE))
    remote.stat("a")
    read = READ[scheme_of(fake)]
    fake.fail_next("stall", match=read, stall_seconds=60)  # one range comes later than the others
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(remote.open, "a")
        wait_until(lambda: sum(request.status == 206 for request in fake.requests) >= 3)
        fake.put("bucket", "run/a", b"x" * LARGE)
        remote.deadline = time.monotonic() + 4  # so that the range is asked for again
        with pytest.raises(CheckpointError, match="'a'"):
            opened.result(30)
    if scheme_of(fake) == "gs":
        ranges = [request.path for request in fake.requests if read in request.path]
        assert len(ranges) == 5
        assert all("generation=" in path for path in ranges)


# -- Listing and deleting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lost-response", "reset", "503", "page", "204"])
def test_a_deletion_whose_answer_is_lost_is_done(remote: BucketStore, fake: FakeBucket, kind: str) -> None:
    if (scheme_of(fake), kind) == ("gs", "204"):
        pytest.skip("it is how Google's service answers a deletion that is done")
    for name in ("a", "b/1", "b/2"):
        remote.create(name, b"")
    fake.fail_next(kind, times=2, match=DELETE[scheme_of(fake)])
    remote.delete("a")
    remote.delete_tree("b")
    assert fake.pending_faults == 0
    assert fake.objects("bucket") == {}


@pytest.mark.parametrize("kind", ["204", "page"])
def test_something_else_that_goes_on_answering_is_named(
    remote: BucketStore, fake: FakeBucket, kind: str
) -> None:
    fake.fail_next(kind, times=10_000)
    named = rf"Check that .* is {SERVICE[scheme_of(fake)]}.*, and what is between"
    calls: list[Callable[[], object]] = [lambda: remote.create("a", b"data"), lambda: remote.stat("a")]
    if scheme_of(fake) == "gs":  # To the clients of the others, a page is a listing of nothing.
        calls.append(lambda: remote.list(""))
    for call in calls:
        remote.deadline = time.monotonic() + 1.0
        with pytest.raises(StoreUnavailable, match=named):
            call()


def test_only_objects_below_the_prefix_are_ever_listed_or_removed(
    remote: BucketStore, fake: FakeBucket
) -> None:
    others = ["runner/x", "run", "run-2/a", "run/", "run/.tmp-1", "run/a\\b"]
    below = []
    if scheme_of(fake) == "gs":
        others.append("run//x")
        below += ["run/a/", "run/a/../b"]
    else:  # Their clients do not list such names, or fail.
        others.append("run/a/")
    for name in (*others, *below):
        fake.put("bucket", name, b"")
    remote.create("a/1", b"")
    assert [info.name for info in remote.list("")] == ["a/1"]
    assert remote.children("") == ["a"]
    remote.delete_tree("a")
    assert sorted(fake.objects("bucket")) == sorted(others)


# -- Training -----------------------------------------------------------------------------------------------


def test_nothing_that_a_store_does_draws_from_the_random_numbers_of_the_training(
    remote: BucketStore, fake: FakeBucket
) -> None:
    random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tobytes()
    scheme = scheme_of(fake)
    for kind, match in (("503", WRITE[scheme]), ("reset", WRITE[scheme]), ("429", READ[scheme])):
        fake.fail_next(kind, match=match)
    remote.prepare()
    remote.create("small", b"data")
    write(remote, "large", bytes(9 << 20))
    with remote.open("large") as stream:
        assert len(stream.read()) == 9 << 20
    log = remote.append_log("events/a.jsonl")
    log.write(b"{}\n")
    log.close()
    remote.delete_tree("events")
    remote.close()
    assert fake.pending_faults == 0
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == before
