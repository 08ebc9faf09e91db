"""What a bucket does to a bucket, and what the store makes of it."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_preempt.checkpoint.errors import (
    AlreadyExists,
    CheckpointError,
    CorruptCheckpoint,
    StoreUnavailable,
)
from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.layout import attempt_directory, attempt_name
from keras_preempt.checkpoint.reader import load
from keras_preempt.checkpoint.storage import budget
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.writer import WorkerShare, write_part
from keras_preempt.testing import FakeGcs, Faults
from keras_preempt.testing.gcs import reads
from tests.checkpoint.builders import at, commit_parts, shares_of, values_of
from tests.checkpoint.campaign_bucket import KINDS
from tests.checkpoint.storage.buckets import LARGE, new_store, wait_until, write


def _large() -> bytes:
    return np.random.default_rng(1).bytes(LARGE)


# -- Writing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lost-response", "reset", "503", "429", "corrupted-upload"])
def test_a_small_file_is_stored_once_whatever_happens_on_the_way(
    bucket: GcsStore, gcs: FakeGcs, kind: str
) -> None:
    gcs.fail_next(kind, times=2, match="uploadType=multipart")
    bucket.create("a", b"data")
    assert gcs.pending_faults == 0
    assert gcs.content("bucket", "run/a") == b"data"
    # What is damaged on the way up never becomes visible: nothing had to be taken away again.
    assert [request for request in gcs.requests if request.method == "DELETE"] == []
    with pytest.raises(AlreadyExists):
        bucket.create("a", b"data")  # the same bytes, and yet not this call's


@pytest.mark.parametrize("kind", ["lost-response", "reset", "503", "429", "corrupted-upload", "session-lost"])
@pytest.mark.parametrize("times", [1, 3])
def test_a_large_file_is_stored_once_whatever_happens_to_any_of_its_chunks(
    bucket: GcsStore, gcs: FakeGcs, kind: str, times: int
) -> None:
    data = _large()
    gcs.fail_next(kind, match="upload_id=", times=times)
    write(bucket, "a", data)
    assert gcs.pending_faults == 0
    assert gcs.content("bucket", "run/a") == data
    assert len(gcs.objects("bucket")) == 1
    assert [request for request in gcs.requests if request.method == "DELETE"] == []


def test_another_writers_file_is_not_taken_for_ours_after_a_failure(bucket: GcsStore, gcs: FakeGcs) -> None:
    gcs.client().bucket("bucket").blob("run/a").upload_from_string(b"data")
    gcs.fail_next("503", match="run/a")
    with pytest.raises(AlreadyExists):
        bucket.create("a", b"data")


def test_a_write_that_took_effect_when_time_was_up_is_found(bucket: GcsStore, gcs: FakeGcs) -> None:
    # The answer is lost, no further try is let through, and only looking tells that the object is there.
    bucket.deadline = time.monotonic() + 1.5
    gcs.fail_next("lost-response", match="POST")
    gcs.fail_next("503", times=10_000, match="POST")
    bucket.create("a", b"data")
    assert gcs.content("bucket", "run/a") == b"data"


def test_several_files_are_sent_at_once(tmp_path: Path) -> None:
    data = np.random.default_rng(1).bytes(1 << 19)
    with FakeGcs(buckets=("bucket",), bytes_per_second=2e6) as gcs:
        store = new_store(gcs, tmp_path)
        seconds = []
        for together in (contextlib.nullcontext(), store.overlapped()):
            begun = time.monotonic()
            with together:
                for number in range(4):
                    write(store, f"{len(seconds)}/{number}", data)
            seconds.append(time.monotonic() - begun)
        store.close()
    assert seconds[1] < seconds[0] / 2


# -- Reading ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["corrupted", "truncated", "reset", "503"])
@pytest.mark.parametrize("size", [1000, LARGE])
def test_what_is_damaged_on_the_way_down_is_read_again(
    bucket: GcsStore, gcs: FakeGcs, kind: str, size: int
) -> None:
    data = _large()[:size]
    write(bucket, "a", data)
    gcs.fail_next(kind, times=2, match="alt=media")
    with bucket.open("a") as stream:
        assert stream.read() == data
    gcs.fail_next(kind, times=1, match="alt=media")
    assert bucket.read("a", limit=size) == data
    assert gcs.pending_faults == 0


@pytest.mark.parametrize("size", [1000, LARGE])
def test_what_is_always_damaged_is_never_handed_out(bucket: GcsStore, gcs: FakeGcs, size: int) -> None:
    write(bucket, "a", _large()[:size])
    gcs.fail_next("corrupted", times=10_000, match="alt=media")
    for read in (lambda: bucket.open("a"), lambda: bucket.read("a", limit=size)):
        with pytest.raises(CorruptCheckpoint, match="other sums"):
            read()


def test_a_file_is_read_as_it_was_looked_at(bucket: GcsStore, gcs: FakeGcs) -> None:
    bucket.create("a", b"looked at")
    bucket.stat("a")
    gcs.client().bucket("bucket").blob("run/a").upload_from_string(b"replaced!")
    with pytest.raises(CheckpointError, match="'a'"):
        bucket.open("a")
    with bucket.open("a") as stream:  # looked at anew
        assert stream.read() == b"replaced!"


def test_a_large_file_that_is_replaced_while_it_is_read_is_not_mixed_with_what_replaces_it(
    bucket: GcsStore, gcs: FakeGcs
) -> None:
    write(bucket, "a", bytes(LARGE))
    bucket.stat("a")
    gcs.fail_next("stall", match="alt=media", stall_seconds=60)  # one range comes later than the others
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(bucket.open, "a")
        wait_until(lambda: sum(request.status == 206 for request in gcs.requests) >= 3)
        gcs.put("bucket", "run/a", b"x" * LARGE)
        bucket.deadline = time.monotonic() + 4  # so that the range is asked for again
        with pytest.raises(CheckpointError, match="'a'"):
            opened.result(30)
    ranges = [request.path for request in gcs.requests if "alt=media" in request.path]
    assert len(ranges) == 5
    assert all("generation=" in path for path in ranges)


# -- Deleting -----------------------------------------------------------------------------------------------


def test_a_deletion_spares_what_has_replaced_the_file(
    bucket: GcsStore, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.create("folder/a", b"old")
    real = bucket._bucket.list

    def list_then_replace(*arguments: Any) -> Any:
        found = real(*arguments)
        gcs.client().bucket("bucket").blob("run/folder/a").upload_from_string(b"new")
        return found

    monkeypatch.setattr(bucket._bucket, "list", list_then_replace)
    bucket.delete_tree("folder")
    assert gcs.content("bucket", "run/folder/a") == b"new"


@pytest.mark.parametrize("kind", ["lost-response", "reset", "503"])
def test_a_deletion_whose_answer_is_lost_is_done(bucket: GcsStore, gcs: FakeGcs, kind: str) -> None:
    for name in ("a", "b/1", "b/2"):
        bucket.create(name, b"")
    gcs.fail_next(kind, times=2, match="DELETE")
    bucket.delete("a")
    bucket.delete_tree("b")
    assert gcs.objects("bucket") == {}


@pytest.mark.parametrize("kind", ["204", "page"])
def test_something_else_that_answers_for_a_while_is_outlasted(
    bucket: GcsStore, gcs: FakeGcs, kind: str
) -> None:
    bucket.create("b", b"old")
    calls: list[tuple[str, Callable[[], object]]] = [
        ("POST", lambda: bucket.create("a", b"data")),
        ("GET", lambda: bucket.stat("a")),
        ("prefix", lambda: bucket.list("")),
        ("prefix", lambda: bucket.children("")),
        ("alt=media", lambda: bucket.read("a", limit=9)),
        ("DELETE", lambda: bucket.delete("b")),
    ]
    if kind == "204":  # Which is how the service itself answers that.
        calls.pop()
        bucket.delete("b")
    for method, call in calls:
        gcs.fail_next(kind, times=2, match=method)
        call()
        assert gcs.pending_faults == 0
    assert gcs.content("bucket", "run/a") == b"data"
    assert list(gcs.objects("bucket")) == ["run/a"]


@pytest.mark.parametrize("kind", ["204", "page"])
def test_something_else_that_goes_on_answering_is_named(bucket: GcsStore, gcs: FakeGcs, kind: str) -> None:
    gcs.fail_next(kind, times=10_000)
    for call in (
        lambda: bucket.create("a", b"data"),
        lambda: bucket.stat("a"),
        lambda: bucket.list(""),
    ):
        bucket.deadline = time.monotonic() + 1.0
        with pytest.raises(
            StoreUnavailable, match=r"Check that .* is Google Cloud Storage, and what is between"
        ):
            call()


def test_a_listing_of_many_pages_takes_its_time(
    bucket: GcsStore, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "_LARGEST_PAGE", 2)
    monkeypatch.setattr(budget, "METADATA_SECONDS", 3.0)
    for number in range(12):
        gcs.put("bucket", f"run/{number:02d}", b"x")
    gcs.fail_next("stall", times=6, match="GET", stall_seconds=0.6)  # 3.6 s in all
    assert len(bucket.list("")) == 12
    assert gcs.pending_faults == 0


def test_only_objects_below_the_prefix_are_ever_listed_or_removed(bucket: GcsStore, gcs: FakeGcs) -> None:
    others = ["runner/x", "run", "run-2/a", "run/", "run//x", "run/a/../b", "run/.tmp-1", "run/a\\b"]
    for name in others:
        gcs.client().bucket("bucket").blob(name).upload_from_string(b"")
    bucket.create("a/1", b"")
    assert [info.name for info in bucket.list("")] == ["a/1"]
    assert bucket.children("") == ["a"]
    bucket.delete_tree("a")
    assert sorted(gcs.objects("bucket")) == sorted(set(others) - {"run/a/../b"})


# -- Checkpoints --------------------------------------------------------------------------------------------


def test_a_checkpoint_of_several_files_at_once_survives_a_bad_network(bucket: GcsStore, gcs: FakeGcs) -> None:
    gcs.faults = Faults(seed=1, rate=0.2, kinds=KINDS, retry_after=0)
    array = np.random.default_rng(1).random((3 << 20,), dtype=np.float32)  # 12 MiB
    directory = attempt_directory(1, attempt_name(1, 1))
    tensors = {"kernel": array}
    part = write_part(bucket, directory, 0, WorkerShare(shares_of(tensors)[0], {}, {}, at(1)))
    assert len(part.files) > 4
    commit_parts(bucket, directory, 1, members=1, writers=(0,), values=values_of(tensors))
    loaded = load(bucket, committed(bucket)[0], 0, 1)
    np.testing.assert_array_equal(loaded.values.whole["kernel"], array)
    assert sum(request.fault is not None for request in gcs.requests) > 4


def test_nothing_that_a_store_does_draws_from_the_random_numbers_of_the_training(
    gcs: FakeGcs, bucket: GcsStore
) -> None:
    random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tobytes()
    for kind, match in (("503", "multipart"), ("reset", "multipart"), ("429", "alt=media")):
        gcs.fail_next(kind, match=match)
    bucket.prepare()
    bucket.create("small", b"data")
    write(bucket, "large", bytes(9 << 20))
    with bucket.open("large") as stream:
        assert len(stream.read()) == 9 << 20
    log = bucket.append_log("events/a.jsonl")
    log.write(b"{}\n")
    log.close()
    bucket.delete_tree("events")
    bucket.close()
    assert gcs.pending_faults == 0
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == before
