"""What is made of answers of a bucket that say little, nothing, or something that does not hold."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from keras_preempt.checkpoint.errors import AlreadyExists, StoreUnavailable, WriteUncertain
from keras_preempt.checkpoint.storage import gcs_client
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.testing import FakeGcs
from keras_preempt.testing.gcs import errors as answers
from keras_preempt.testing.gcs.api import Api, Reply
from tests.checkpoint.storage.buckets import LARGE, wait_until, write

# -- 412 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, LARGE])
def test_a_name_that_is_said_to_be_taken_and_is_not_is_tried_again(
    bucket: GcsStore, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """As when somebody else's file is removed between the refusal and the look at what is there."""
    gcs.put("bucket", "run/a", b"theirs")
    real = bucket._bucket.reload

    def remove_then_look(name: str, *rest: Any) -> Any:
        if name in gcs.objects("bucket"):
            gcs.remove("bucket", name)
        return real(name, *rest)

    monkeypatch.setattr(bucket._bucket, "reload", remove_then_look)
    write(bucket, "a", bytes(size))
    assert gcs.content("bucket", "run/a") == bytes(size)


def test_a_name_that_is_always_taken_and_never_there_is_an_error_that_names_the_server(
    bucket: GcsStore, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Api, "_upload", mock.Mock(side_effect=answers.condition_not_met()))
    with pytest.raises(StoreUnavailable, match=r"Received: 412 .*enforce preconditions") as caught:
        bucket.create("a", b"data")
    assert gcs.endpoint in str(caught.value)
    assert "overloaded" not in str(caught.value)
    assert not isinstance(caught.value, WriteUncertain)
    assert len([request for request in gcs.requests if request.method == "POST"]) > 1


# -- Answers that lack something ----------------------------------------------------------------------------


def _without(monkeypatch: pytest.MonkeyPatch, field: str, *, zero_only: bool = False) -> None:
    real = Reply.of

    def of(document: dict[str, Any]) -> Reply:
        resources = [dict(each) for each in document.get("items", [document])]
        for each in resources:
            if each.get(field) == "0" or not zero_only:
                each.pop(field, None)
        return real({**document, "items": resources} if "items" in document else resources[0])

    monkeypatch.setattr(Reply, "of", of)


def test_an_empty_object_whose_size_is_left_out_is_empty(
    bucket: GcsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Google's own storage-testbench leaves out what is zero."""
    _without(monkeypatch, "size", zero_only=True)
    bucket.create("a", b"")
    bucket.create("b", b"1")
    assert bucket.stat("a").size == 0
    assert bucket.read("a", limit=1) == b""
    assert [(info.name, info.size) for info in bucket.list("")] == [("a", 0), ("b", 1)]


@pytest.mark.parametrize("field", ["size", "generation"])
def test_an_object_without_what_every_object_has_is_an_error_that_says_so(
    bucket: GcsStore, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    gcs.put("bucket", "run/a", b"data")
    _without(monkeypatch, field)
    why = f"the resource of 'run/a' without its {field}.*Check that"
    for call in (lambda: bucket.stat("a"), lambda: bucket.list(""), lambda: bucket.open("a")):
        with pytest.raises(StoreUnavailable, match=why):
            call()


@pytest.mark.parametrize("size", [1000, LARGE])
def test_an_upload_that_is_answered_with_nothing_is_looked_for(
    bucket: GcsStore, gcs: FakeGcs, size: int
) -> None:
    gcs.fail_next("empty-response", match="upload_id=" if size == LARGE else "uploadType=multipart")
    write(bucket, "a", bytes(size))
    assert gcs.pending_faults == 0
    assert gcs.content("bucket", "run/a") == bytes(size)
    assert len([request for request in gcs.requests if request.method == "POST"]) == 1


# -- Statuses that are not tried again ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (answers.GcsError(410, "gone", "Gone."), "has forgotten this upload"),
        (answers.not_built("this"), "does not take this request"),
        (answers.GcsError(409, "conflict", "Conflict."), "does not take this request"),
    ],
)
def test_what_is_not_tried_again_is_not_said_to_have_been(
    bucket: GcsStore, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch, error: Exception, says: str
) -> None:
    monkeypatch.setattr(Api, "_upload", mock.Mock(side_effect=error))
    with pytest.raises(StoreUnavailable, match=says) as caught:
        bucket.create("a", b"data")
    assert "tried again" not in str(caught.value)
    assert not isinstance(caught.value, WriteUncertain)
    assert len(gcs.requests) == 1


# -- Writes that may still arrive ---------------------------------------------------------------------------


def test_a_write_that_was_not_answered_is_uncertain_and_may_arrive_later(
    bucket: GcsStore, gcs: FakeGcs
) -> None:
    gcs.fail_next("stall", times=1, match="POST", stall_seconds=4)
    gcs.fail_next("503", times=10_000, match="POST")  # Whatever the next tries are told.
    bucket.deadline = time.monotonic() + 2
    why = "may still be carried out.*not known whether it will be stored"
    with pytest.raises(WriteUncertain, match=why):
        bucket.create("a", b"data")
    assert gcs.objects("bucket") == {}
    wait_until(lambda: bool(gcs.objects("bucket")))
    assert gcs.content("bucket", "run/a") == b"data"


@pytest.mark.parametrize(("down", "known"), [("POST", True), ("run/a", False)])
def test_a_write_that_was_answered_each_time_has_failed_if_a_look_tells_so(
    bucket: GcsStore, gcs: FakeGcs, down: str, known: bool
) -> None:
    gcs.fail_next("503", times=10_000, match=down)
    bucket.deadline = time.monotonic() + 1
    with pytest.raises(StoreUnavailable, match=r"create 'run/a'.*503") as caught:
        bucket.create("a", b"data")
    assert isinstance(caught.value, WriteUncertain) != known
    assert ("not known whether it is stored" in str(caught.value)) != known


def test_a_write_that_never_left_the_machine_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused, FakeGcs():
        unused.bind(("127.0.0.1", 0))  # nobody listens
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{unused.getsockname()[1]}")
        store = GcsStore("gs://bucket/run", staging_dir=tmp_path, connect=gcs_client.connect)
        store.deadline = time.monotonic() + 1
        with pytest.raises(StoreUnavailable, match="refused") as caught:
            store.create("a", b"data")
        store.close()
    assert not isinstance(caught.value, WriteUncertain)
    assert "not known" not in str(caught.value)


def test_a_name_that_somebody_else_has_taken_meanwhile_is_taken(bucket: GcsStore, gcs: FakeGcs) -> None:
    gcs.fail_next("stall", times=10_000, match="POST", stall_seconds=60)
    gcs.put("bucket", "run/a", b"theirs")
    bucket.deadline = time.monotonic() + 1
    with pytest.raises(AlreadyExists):
        bucket.create("a", b"data")
