"""What is made of answers of a bucket that say little, nothing, or something that does not hold."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint.errors import AlreadyExists, StoreUnavailable, WriteUncertain
from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage import budget, gcs_client
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.testing import FakeGcs
from keras_preempt.testing.gcs import errors as answers
from keras_preempt.testing.gcs.api import Api, Reply
from tests.checkpoint.storage.test_gcs_faults import LARGE, new_store
from tests.training.test_saver import prepared, saver


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGcs]:
    monkeypatch.setattr(budget, "_FIRST_DELAY", 0.01)
    with FakeGcs(buckets=("bucket",)) as server:
        yield server


@pytest.fixture
def store(gcs: FakeGcs, tmp_path: Path) -> Iterator[GcsStore]:
    made = new_store(gcs, tmp_path)
    yield made
    made.close()


def _write(store: GcsStore, name: str, size: int) -> None:
    with store.writer(name) as writer:
        writer.write(bytes(size))


# -- 412 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, LARGE])
def test_a_name_that_is_said_to_be_taken_and_is_not_is_tried_again(
    store: GcsStore, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """As when somebody else's file is removed between the refusal and the look at what is there."""
    gcs.put("bucket", "run/a", b"theirs")
    real = store._bucket.reload

    def remove_then_look(name: str, *rest: Any) -> Any:
        if name in gcs.objects("bucket"):
            gcs.remove("bucket", name)
        return real(name, *rest)

    monkeypatch.setattr(store._bucket, "reload", remove_then_look)
    _write(store, "a", size)
    assert gcs.content("bucket", "run/a") == bytes(size)


def test_a_name_that_is_always_taken_and_never_there_is_an_error_that_names_the_server(
    store: GcsStore, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise answers.condition_not_met()

    monkeypatch.setattr(Api, "_upload", refuse)
    with pytest.raises(StoreUnavailable, match=r"Received: 412 .*keep conditions") as caught:
        store.create("a", b"data")
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
    store: GcsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Google's own storage-testbench leaves out what is zero."""
    _without(monkeypatch, "size", zero_only=True)
    store.create("a", b"")
    store.create("b", b"1")
    assert store.stat("a").size == 0
    assert store.read("a", limit=1) == b""
    assert [(info.name, info.size) for info in store.list("")] == [("a", 0), ("b", 1)]


@pytest.mark.parametrize("field", ["size", "generation"])
def test_an_object_without_what_every_object_has_is_an_error_that_says_so(
    store: GcsStore, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    gcs.put("bucket", "run/a", b"data")
    _without(monkeypatch, field)
    for call in (lambda: store.stat("a"), lambda: store.list(""), lambda: store.open("a")):
        with pytest.raises(
            StoreUnavailable, match=rf"the resource of 'run/a' without its {field}.*Check that"
        ):
            call()


@pytest.mark.parametrize("size", [1000, LARGE])
def test_an_upload_that_is_answered_with_nothing_is_looked_for(
    store: GcsStore, gcs: FakeGcs, size: int
) -> None:
    gcs.fail_next("empty-response", match="upload_id=" if size == LARGE else "uploadType=multipart")
    _write(store, "a", size)
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
    store: GcsStore, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch, error: Exception, says: str
) -> None:
    def refuse(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(Api, "_upload", refuse)
    with pytest.raises(StoreUnavailable, match=says) as caught:
        store.create("a", b"data")
    assert "tried again" not in str(caught.value)
    assert not isinstance(caught.value, WriteUncertain)
    assert len(gcs.requests) == 1


# -- Writes that may still arrive ---------------------------------------------------------------------------


def test_a_write_that_was_not_answered_is_uncertain_and_may_arrive_later(
    store: GcsStore, gcs: FakeGcs
) -> None:
    gcs.fail_next("stall", times=1, match="POST", stall_seconds=8)
    gcs.fail_next("503", times=10_000, match="POST")  # Whatever the next tries are told.
    store.deadline = time.monotonic() + 4
    with pytest.raises(
        WriteUncertain, match=r"may still be carried out.*not known whether it will be stored"
    ):
        store.create("a", b"data")
    assert gcs.objects("bucket") == {}
    end = time.monotonic() + 30
    while not gcs.objects("bucket"):
        assert time.monotonic() < end, "the stalled request is not carried out"
        threading.Event().wait(0.05)
    assert gcs.content("bucket", "run/a") == b"data"


def test_a_write_that_was_answered_each_time_has_failed(store: GcsStore, gcs: FakeGcs) -> None:
    gcs.fail_next("503", times=10_000, match="POST")
    store.deadline = time.monotonic() + 2
    with pytest.raises(StoreUnavailable, match="503") as caught:
        store.create("a", b"data")
    assert not isinstance(caught.value, WriteUncertain)
    assert "not known" not in str(caught.value)


def test_a_write_that_never_left_the_machine_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused, FakeGcs():
        unused.bind(("127.0.0.1", 0))  # nobody listens
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{unused.getsockname()[1]}")
        store = GcsStore("gs://bucket/run", staging_dir=tmp_path, connect=gcs_client.connect)
        store.deadline = time.monotonic() + 2
        with pytest.raises(StoreUnavailable, match="refused") as caught:
            store.create("a", b"data")
        store.close()
    assert not isinstance(caught.value, WriteUncertain)
    assert "not known" not in str(caught.value)


def test_a_name_that_somebody_else_has_taken_meanwhile_is_taken(store: GcsStore, gcs: FakeGcs) -> None:
    gcs.fail_next("stall", times=10_000, match="POST", stall_seconds=60)
    gcs.put("bucket", "run/a", b"theirs")
    store.deadline = time.monotonic() + 2
    with pytest.raises(AlreadyExists):
        store.create("a", b"data")


def test_a_checkpoint_whose_manifest_may_still_arrive_is_not_said_to_be_lost(
    store: GcsStore, gcs: FakeGcs, caplog: pytest.LogCaptureFixture
) -> None:
    made = saver(store, Retention(1))
    gcs.fail_next("stall", times=10_000, match="MANIFEST.json", stall_seconds=5)
    store.deadline = time.monotonic() + 4
    with caplog.at_level(logging.WARNING, "keras_preempt"):
        saved = made.write(prepared(1))
    assert (saved.name, saved.uncertain) == (None, True)
    assert "NOT KNOWN whether the checkpoint at step 1 was saved" in caplog.text
    assert "NOT saved" not in caplog.text
