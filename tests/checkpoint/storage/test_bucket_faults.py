"""What a bucket of S3 or Azure does to a bucket, and what the store makes of it."""

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
    WriteUncertain,
)
from keras_preempt.checkpoint.storage.bucket import BucketStore
from keras_preempt.testing.buckets.fake import FakeBucket
from tests.checkpoint.storage.buckets import LARGE, scheme_of, wait_until, write


def _large() -> bytes:
    return np.random.default_rng(1).bytes(LARGE)


def _requests(fake: FakeBucket, method: str) -> int:
    return sum(request.method == method for request in fake.requests)


# -- Writing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        "lost-response",
        "empty-response",
        "reset",
        "503",
        "429",
        "500",
        "409",
        "412",
        "204",
        "page",
        "expired-token",
    ],
)
@pytest.mark.parametrize("size", [4, LARGE])
def test_a_file_is_stored_once_whatever_happens_on_the_way(
    remote: BucketStore, fake: FakeBucket, kind: str, size: int
) -> None:
    data = _large()[:size]
    remote.children("")  # Credentials that expire later are renewed.
    fake.fail_next(kind, times=2, match="PUT")
    write(remote, "a", data)
    assert fake.pending_faults == 0 or kind in ("lost-response", "empty-response")
    assert fake.content("bucket", "run/a") == data
    assert len(fake.objects("bucket")) == 1
    fake.fail_next("reset", times=fake.pending_faults + 1, match="PUT")
    with pytest.raises(AlreadyExists):
        remote.create("a", data)  # the same bytes, and yet not this call's


def test_an_upload_to_s3_that_is_damaged_on_the_way_is_sent_again(
    remote: BucketStore, fake: FakeBucket
) -> None:
    if scheme_of(fake) != "s3":
        pytest.skip("Azure is not told what the bytes should be")
    fake.fail_next("corrupted-upload", times=2)
    remote.create("a", b"data")
    assert fake.pending_faults == 0
    assert fake.content("bucket", "run/a") == b"data"


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
    fake.fail_next("lost-response", match="PUT")
    fake.fail_next("503", times=10_000, match="PUT")
    remote.create("a", b"data")
    assert fake.content("bucket", "run/a") == b"data"


def test_a_name_that_is_always_taken_and_never_there_is_an_error_that_names_the_server(
    remote: BucketStore, fake: FakeBucket
) -> None:
    fake.fail_next("412", times=10_000, match="PUT")
    remote.deadline = time.monotonic() + 1.0
    with pytest.raises(StoreUnavailable, match=r"Received: 412 .*enforce preconditions") as caught:
        remote.create("a", b"data")
    assert fake.endpoint in str(caught.value)
    assert not isinstance(caught.value, WriteUncertain)
    assert _requests(fake, "PUT") > 1


@pytest.mark.parametrize(("down", "known"), [("PUT", True), ("", False)])
def test_a_write_whose_service_stays_down_is_uncertain_unless_a_look_tells(
    remote: BucketStore, fake: FakeBucket, down: str, known: bool
) -> None:
    fake.fail_next("503", times=10_000, match=down or "run")
    remote.deadline = time.monotonic() + 1
    with pytest.raises(StoreUnavailable, match=r"create 'run/a'.*503") as caught:
        remote.create("a", b"data")
    assert isinstance(caught.value, WriteUncertain) != known
    assert ("not known whether it is stored" in str(caught.value)) != known


def test_a_write_that_was_not_answered_is_uncertain_and_may_arrive_later(
    remote: BucketStore, fake: FakeBucket
) -> None:
    fake.fail_next("stall", match="PUT", stall_seconds=4)
    fake.fail_next("503", times=10_000, match="PUT")  # Whatever the next tries are told.
    remote.deadline = time.monotonic() + 2
    with pytest.raises(
        WriteUncertain, match=r"may still be carried out.*not known whether it will be stored"
    ):
        remote.create("a", b"data")
    assert fake.objects("bucket") == {}
    wait_until(lambda: bool(fake.objects("bucket")))


def test_a_name_that_somebody_else_has_taken_meanwhile_is_taken(
    remote: BucketStore, fake: FakeBucket
) -> None:
    fake.fail_next("stall", times=10_000, match="PUT", stall_seconds=60)
    fake.put("bucket", "run/a", b"theirs")
    remote.deadline = time.monotonic() + 1
    with pytest.raises(AlreadyExists):
        remote.create("a", b"data")


# -- Reading ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["corrupted", "truncated", "reset", "503", "page", "204"])
@pytest.mark.parametrize("size", [1000, LARGE])
def test_what_is_damaged_on_the_way_down_is_read_again(
    remote: BucketStore, fake: FakeBucket, kind: str, size: int
) -> None:
    data = _large()[:size]
    write(remote, "a", data)
    remote.stat("a")
    fake.fail_next(kind, times=2, match="GET")
    with remote.open("a") as stream:
        assert stream.read() == data
    fake.fail_next(kind, match="GET")
    assert remote.read("a", limit=size) == data
    assert fake.pending_faults == 0


def test_a_download_that_ends_early_goes_on_where_it_was(remote: BucketStore, fake: FakeBucket) -> None:
    write(remote, "a", _large()[: 6 << 20])  # one range
    fake.forget_requests()
    fake.fail_next("truncated", match="GET")
    remote.open("a").close()
    sent = [request.bytes for request in fake.requests if request.method == "GET"]
    assert len(sent) == 2
    assert 2 << 20 <= sent[1] <= 4 << 20


@pytest.mark.parametrize("size", [1000, LARGE])
def test_what_is_always_damaged_is_never_handed_out(remote: BucketStore, fake: FakeBucket, size: int) -> None:
    write(remote, "a", _large()[:size])
    fake.fail_next("corrupted", times=10_000, match="GET")
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
    fake.fail_next("stall", match="GET", stall_seconds=60)  # one range comes later than the others
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(remote.open, "a")
        wait_until(lambda: sum(request.status == 206 for request in fake.requests) >= 3)
        fake.put("bucket", "run/a", b"x" * LARGE)
        remote.deadline = time.monotonic() + 4  # so that the range is asked for again
        with pytest.raises(CheckpointError, match="'a'"):
            opened.result(30)


# -- Listing and deleting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lost-response", "reset", "503", "page", "204"])
def test_a_deletion_whose_answer_is_lost_is_done(remote: BucketStore, fake: FakeBucket, kind: str) -> None:
    for name in ("a", "b/1", "b/2"):
        remote.create(name, b"")
    fake.fail_next(kind, times=2, match="DELETE" if scheme_of(fake) == "s3" else "comp=batch")
    remote.delete("a")
    remote.delete_tree("b")
    assert fake.pending_faults == 0
    assert fake.objects("bucket") == {}


@pytest.mark.parametrize("kind", ["204", "page"])
def test_something_else_that_answers_for_a_while_is_outlasted(
    remote: BucketStore, fake: FakeBucket, kind: str
) -> None:
    fake.put("bucket", "run/a", b"data")
    calls: list[tuple[str, Callable[[], object], object]] = [
        ("HEAD", lambda: remote.stat("a").size, 4),
        ("prefix", lambda: len(remote.list("")), 1),
        ("prefix", lambda: remote.children(""), ["a"]),
        ("GET", lambda: remote.read("a", limit=9), b"data"),
    ]
    for method, call, expected in calls:
        # A page that is well-formed looks like a listing of nothing, which is asked for twice.
        fake.fail_next(kind, times=1 if method == "prefix" else 2, match=method)
        assert call() == expected
        assert fake.pending_faults == 0


@pytest.mark.parametrize("kind", ["204", "page"])
def test_something_else_that_goes_on_answering_is_named(
    remote: BucketStore, fake: FakeBucket, kind: str
) -> None:
    fake.fail_next(kind, times=10_000, match="run")
    for call in (lambda: remote.create("a", b"data"), lambda: remote.stat("a")):
        remote.deadline = time.monotonic() + 1.0
        with pytest.raises(StoreUnavailable, match=r"Check that .* is .*, and what is between"):
            call()


@pytest.mark.parametrize("removed", [100, pytest.param(5000, marks=pytest.mark.chaos)])
def test_5000_objects_are_listed_and_removed_on_a_bad_network(
    remote: BucketStore, fake: FakeBucket, removed: int
) -> None:
    names = [f"folder/{number:05d}" for number in range(5000)]
    for name in names:
        fake.put("bucket", f"run/{name}", b"x")
    fake.fail_next("503", times=3, match="prefix")
    assert [info.name for info in remote.list("")] == names
    fake.fail_next("truncated", times=1, match="prefix")
    assert remote.children("folder") == [name.split("/")[1] for name in names]
    fake.put("bucket", "run/other", b"x")
    for name in names[removed:]:
        fake.remove("bucket", f"run/{name}")
    remote.delete_tree("folder")
    assert list(fake.objects("bucket")) == ["run/other"]


def test_only_objects_below_the_prefix_are_ever_listed_or_removed(
    remote: BucketStore, fake: FakeBucket
) -> None:
    others = ["runner/x", "run", "run-2/a", "run/", "run/a/", "run/.tmp-1", "run/a\\b"]
    for name in others:
        fake.put("bucket", name, b"")
    remote.create("a/1", b"")
    assert [info.name for info in remote.list("")] == ["a/1"]
    assert remote.children("") == ["a"]
    remote.delete_tree("a")
    assert sorted(fake.objects("bucket")) == sorted(others)


def test_a_name_that_cannot_be_listed_is_told_with_what_to_do(remote: BucketStore, fake: FakeBucket) -> None:
    fake.put("bucket", "run//x", b"")
    with pytest.raises(StoreUnavailable, match=r"Received: .*empty path segment.*Remove them"):
        remote.list("")


def test_nothing_that_a_store_does_draws_from_the_random_numbers_of_the_training(
    remote: BucketStore, fake: FakeBucket
) -> None:
    random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tobytes()
    for kind, match in (("503", "PUT"), ("reset", "PUT"), ("429", "GET")):
        fake.fail_next(kind, match=match)
    remote.prepare()
    write(remote, "large", bytes(9 << 20))
    with remote.open("large") as stream:
        assert len(stream.read()) == 9 << 20
    remote.delete_tree("large")
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == before
