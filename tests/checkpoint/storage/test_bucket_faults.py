"""What a bucket of S3 or Azure does, beside what all do (`test_common_faults.py`), and what the store makes of it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from keras_preempt.checkpoint.errors import AlreadyExists, StoreUnavailable, WriteUncertain
from keras_preempt.checkpoint.storage.bucket import BucketStore
from keras_preempt.testing.buckets.fake import FakeBucket
from tests.checkpoint.storage.buckets import LARGE, large_content, scheme_of, wait_until, write


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
    data = large_content()[:size]
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


def test_a_download_that_ends_early_goes_on_where_it_was(remote: BucketStore, fake: FakeBucket) -> None:
    write(remote, "a", large_content()[: 6 << 20])  # one range
    fake.forget_requests()
    fake.fail_next("truncated", match="GET")
    remote.open("a").close()
    sent = [request.bytes for request in fake.requests if request.method == "GET"]
    assert len(sent) == 2
    assert 2 << 20 <= sent[1] <= 4 << 20


# -- Listing and deleting -----------------------------------------------------------------------------------


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


def test_a_name_that_cannot_be_listed_is_told_with_what_to_do(remote: BucketStore, fake: FakeBucket) -> None:
    fake.put("bucket", "run//x", b"")
    with pytest.raises(StoreUnavailable, match=r"Received: .*empty path segment.*Remove them"):
        remote.list("")
