"""What a bucket of Google does, beside what all do (`test_common_faults.py`), and what the store makes of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_preempt.checkpoint.errors import AlreadyExists
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
from tests.checkpoint.storage.buckets import large_content, new_store, write

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
    data = large_content()
    gcs.fail_next(kind, match="upload_id=", times=times)
    write(bucket, "a", data)
    assert gcs.pending_faults == 0
    assert gcs.content("bucket", "run/a") == data
    assert len(gcs.objects("bucket")) == 1
    assert [request for request in gcs.requests if request.method == "DELETE"] == []


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


# -- Listing and deleting -----------------------------------------------------------------------------------


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
