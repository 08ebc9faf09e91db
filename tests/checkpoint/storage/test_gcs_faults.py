"""What a bucket does to a store, and what the store makes of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
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
from keras_preempt.checkpoint.layout import attempt_directory, attempt_name
from keras_preempt.checkpoint.partition import Slice
from keras_preempt.checkpoint.reader import committed, load, verify
from keras_preempt.checkpoint.retention import Retention, retain
from keras_preempt.checkpoint.storage import budget, gcs_transfer
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.writer import write_part
from keras_preempt.testing import FakeGcs, Faults
from tests.checkpoint.builders import at, commit_parts, model, save, write_parts

LARGE = (17 << 20) + 12345  # bytes: three chunks of an upload, four ranges of a download


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGcs]:
    monkeypatch.setattr(budget, "_FIRST_DELAY", 0.01)
    monkeypatch.setattr(budget, "_LONGEST_DELAY", 0.05)
    monkeypatch.setattr(gcs_transfer, "CHUNK", 8 << 20)
    with FakeGcs(buckets=("bucket",)) as server:
        yield server


@pytest.fixture
def store(gcs: FakeGcs, tmp_path: Path) -> Iterator[GcsStore]:
    made = new_store(gcs, tmp_path)
    yield made
    made.close()


def new_store(gcs: FakeGcs, tmp_path: Path) -> GcsStore:
    return GcsStore("gs://bucket/run", staging_dir=tmp_path, connect=gcs.client)


def _write(store: GcsStore, name: str, data: bytes) -> None:
    with store.writer(name) as writer:
        writer.write(data)


def _large() -> bytes:
    return np.random.default_rng(1).bytes(LARGE)


# -- Writing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lost-response", "reset", "503", "429", "corrupted-upload"])
def test_a_small_file_is_stored_once_whatever_happens_on_the_way(
    store: GcsStore, gcs: FakeGcs, kind: str
) -> None:
    gcs.fail_next(kind, times=2, match="uploadType=multipart")
    store.create("a", b"data")
    assert gcs.pending_faults == 0
    assert gcs.content("bucket", "run/a") == b"data"


@pytest.mark.parametrize("kind", ["lost-response", "reset", "503", "429", "corrupted-upload", "session-lost"])
@pytest.mark.parametrize("times", [1, 3])
def test_a_large_file_is_stored_once_whatever_happens_to_any_of_its_chunks(
    store: GcsStore, gcs: FakeGcs, kind: str, times: int
) -> None:
    data = _large()
    gcs.fail_next(kind, match="upload_id=", times=times)
    _write(store, "a", data)
    assert gcs.pending_faults == 0
    assert gcs.content("bucket", "run/a") == data
    assert len(gcs.objects("bucket")) == 1


@pytest.mark.parametrize("size", [1000, LARGE])
def test_what_is_damaged_on_the_way_up_is_refused_and_never_visible(
    store: GcsStore, gcs: FakeGcs, size: int
) -> None:
    data = _large()[:size]
    gcs.fail_next("corrupted-upload", match="upload_id=" if size == LARGE else "uploadType=multipart")
    _write(store, "a", data)
    assert gcs.content("bucket", "run/a") == data
    # Had it been stored, the client would have had to take it away again.
    assert [request for request in gcs.requests if request.method == "DELETE"] == []


def test_a_write_whose_answer_was_lost_is_recognised_as_our_own(store: GcsStore, gcs: FakeGcs) -> None:
    gcs.fail_next("lost-response", match="run/a")
    store.create("a", b"data")
    with pytest.raises(AlreadyExists):
        store.create("a", b"data")  # the same bytes, and yet not this call's


def test_another_writers_file_is_not_taken_for_ours_after_a_failure(store: GcsStore, gcs: FakeGcs) -> None:
    gcs.client().bucket("bucket").blob("run/a").upload_from_string(b"data")
    gcs.fail_next("503", match="run/a")
    with pytest.raises(AlreadyExists):
        store.create("a", b"data")


def test_a_write_that_took_effect_when_time_was_up_is_found(store: GcsStore, gcs: FakeGcs) -> None:
    # The answer is lost, no further try is let through, and only looking tells that the object is there.
    store.deadline = time.monotonic() + 3
    gcs.fail_next("lost-response", match="POST")
    gcs.fail_next("503", times=10_000, match="POST")
    store.create("a", b"data")
    assert gcs.content("bucket", "run/a") == b"data"


def test_an_outage_says_that_it_is_not_known_whether_a_file_was_stored(store: GcsStore, gcs: FakeGcs) -> None:
    store.deadline = time.monotonic() + 2
    gcs.fail_next("503", times=10_000, match="run/a")
    with pytest.raises(StoreUnavailable, match=r"create 'run/a'.*503.*not known whether it is stored"):
        store.create("a", b"data")


def test_a_failed_upload_among_several_surfaces_before_the_block_ends(store: GcsStore, gcs: FakeGcs) -> None:
    store.deadline = time.monotonic() + 3
    gcs.fail_next("403", times=100, match="run/3")

    def write_all() -> None:
        with store.overlapped():
            for number in range(6):
                _write(store, str(number), b"x")

    with pytest.raises(StoreUnavailable, match="run/3"):
        write_all()


def test_several_files_are_sent_at_once(tmp_path: Path) -> None:
    data = np.random.default_rng(1).bytes(1 << 20)
    with FakeGcs(buckets=("bucket",), bytes_per_second=2e6) as gcs:
        store = new_store(gcs, tmp_path)
        begun = time.monotonic()
        for number in range(4):
            _write(store, f"one/{number}", data)
        alone = time.monotonic() - begun
        begun = time.monotonic()
        with store.overlapped():
            for number in range(4):
                _write(store, f"other/{number}", data)
        together = time.monotonic() - begun
        store.close()
    assert together < alone / 2


# -- Reading ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["corrupted", "truncated", "reset", "503"])
@pytest.mark.parametrize("size", [1000, LARGE])
def test_what_is_damaged_on_the_way_down_is_read_again(
    store: GcsStore, gcs: FakeGcs, kind: str, size: int
) -> None:
    data = _large()[:size]
    _write(store, "a", data)
    gcs.fail_next(kind, times=2, match="alt=media")
    with store.open("a") as stream:
        assert stream.read() == data
    gcs.fail_next(kind, times=1, match="alt=media")
    assert store.read("a", limit=size) == data
    assert gcs.pending_faults == 0


@pytest.mark.parametrize("size", [1000, LARGE])
def test_what_is_always_damaged_is_never_handed_out(store: GcsStore, gcs: FakeGcs, size: int) -> None:
    _write(store, "a", _large()[:size])
    gcs.fail_next("corrupted", times=10_000, match="alt=media")
    with pytest.raises(CorruptCheckpoint, match="other sums"):
        store.open("a")
    with pytest.raises(CorruptCheckpoint, match="other sums"):
        store.read("a", limit=size)


def test_a_file_is_read_as_it_was_looked_at(store: GcsStore, gcs: FakeGcs) -> None:
    store.create("a", b"looked at")
    store.stat("a")
    gcs.client().bucket("bucket").blob("run/a").upload_from_string(b"replaced!")
    with pytest.raises(CheckpointError, match="'a'"):
        store.open("a")
    with store.open("a") as stream:  # looked at anew
        assert stream.read() == b"replaced!"


def test_a_large_file_that_is_replaced_while_it_is_read_is_not_mixed_with_what_replaces_it(
    store: GcsStore, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(store, "a", bytes(LARGE))
    store.stat("a")
    gcs.fail_next("stall", match="alt=media", stall_seconds=60)  # one range comes later than the others
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(store.open, "a")
        end = time.monotonic() + 20
        while sum(request.status == 206 for request in gcs.requests) < 3:
            assert time.monotonic() < end
            time.sleep(0.01)
        gcs.put("bucket", "run/a", b"x" * LARGE)
        store.deadline = time.monotonic() + 6  # so that the range is asked for again
        with pytest.raises(CheckpointError, match="'a'"):
            opened.result(30)
    ranges = [request.path for request in gcs.requests if "alt=media" in request.path]
    assert len(ranges) == 5
    assert all("generation=" in path for path in ranges)


# -- Deleting -----------------------------------------------------------------------------------------------


def test_a_deletion_spares_what_has_replaced_the_file(
    store: GcsStore, gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("folder/a", b"old")
    real = store._bucket.list

    def list_then_replace(*arguments: Any) -> Any:
        found = real(*arguments)
        gcs.client().bucket("bucket").blob("run/folder/a").upload_from_string(b"new")
        return found

    monkeypatch.setattr(store._bucket, "list", list_then_replace)
    store.delete_tree("folder")
    assert gcs.content("bucket", "run/folder/a") == b"new"


@pytest.mark.parametrize("kind", ["lost-response", "reset", "503"])
def test_a_deletion_whose_answer_is_lost_is_done(store: GcsStore, gcs: FakeGcs, kind: str) -> None:
    for name in ("a", "b/1", "b/2"):
        store.create(name, b"")
    gcs.fail_next(kind, times=2, match="DELETE")
    store.delete("a")
    store.delete_tree("b")
    assert gcs.objects("bucket") == {}


def test_only_objects_below_the_prefix_are_ever_listed_or_removed(store: GcsStore, gcs: FakeGcs) -> None:
    others = ["runner/x", "run", "run-2/a", "run/", "run//x", "run/a/../b", "run/.tmp-1", "run/a\\b"]
    for name in others:
        gcs.client().bucket("bucket").blob(name).upload_from_string(b"")
    store.create("a/1", b"")
    assert [info.name for info in store.list("")] == ["a/1"]
    assert store.children("") == ["a"]
    store.delete_tree("a")
    assert sorted(gcs.objects("bucket")) == sorted(set(others) - {"run/a/../b"})


# -- Time ---------------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[GcsStore], object]] = {
    "create": lambda store: store.create("new", b"x"),
    "writer": lambda store: _write(store, "new", b"x" * (9 << 20)),
    "read": lambda store: store.read("there", limit=9),
    "open": lambda store: store.open("large"),
    "stat": lambda store: store.stat("there"),
    "list": lambda store: store.list(""),
    "children": lambda store: store.children(""),
    "delete": lambda store: store.delete("there"),
    "delete_tree": lambda store: store.delete_tree("folder"),
    "prepare": lambda store: store.prepare(),
}


@pytest.mark.parametrize("call", CALLS)
def test_no_call_lasts_much_longer_than_the_deadline_when_the_service_is_silent(
    store: GcsStore, gcs: FakeGcs, call: str
) -> None:
    store.create("there", b"x")
    store.create("folder/there", b"x")
    _write(store, "large", b"x" * (9 << 20))
    gcs.fail_next("stall", times=10_000, match="bucket", stall_seconds=60)
    begun = time.monotonic()
    store.deadline = time.monotonic() + 3
    with pytest.raises(StoreUnavailable, match=r"Expected to .* in gs://bucket/run\. Received: "):
        CALLS[call](store)
    assert time.monotonic() - begun < 3 + 2 * budget.LAST_CHANCE + 2


def test_a_call_after_the_deadline_still_gets_a_chance(store: GcsStore) -> None:
    store.deadline = time.monotonic() - 100
    store.create("a", b"data")
    assert store.read("a", limit=9) == b"data"


# -- Checkpoints --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_checkpoints_survive_a_bad_network(store: GcsStore, gcs: FakeGcs, seed: int) -> None:
    kinds = ("429", "503", "corrupted", "corrupted-upload", "lost-response", "reset", "truncated")
    gcs.faults = Faults(seed=seed, rate=0.15, kinds=kinds, retry_after=0)
    infos = [save(store, step, round=step) for step in (1, 2, 3)]
    verify(store, infos[2])
    loaded = load(store, infos[2], 0, 2)
    for name, array in model(3).items():
        np.testing.assert_array_equal(loaded.tensors[name], array)
    retain(store, Retention(1), 1)
    assert [info.step for info in committed(store)] == [3]


def test_a_checkpoint_of_several_files_at_once_survives_a_bad_network(store: GcsStore, gcs: FakeGcs) -> None:
    kinds = ("429", "503", "corrupted", "corrupted-upload", "lost-response", "reset", "truncated")
    gcs.faults = Faults(seed=1, rate=0.2, kinds=kinds, retry_after=0)
    array = np.random.default_rng(1).random((3 << 20,), dtype=np.float32)  # 12 MiB
    directory = attempt_directory(1, attempt_name(1, 1))
    slice_ = Slice("kernel", "float32", array.shape, 0, array.size)
    part = write_part(store, directory, 0, [(slice_, array)], {}, {}, at(1))
    assert len(part.files) > 4
    commit_parts(store, directory, 1, members=1, writers=(0,))
    loaded = load(store, committed(store)[0], 0, 1)
    np.testing.assert_array_equal(loaded.tensors["kernel"], array)
    assert sum(request.fault is not None for request in gcs.requests) > 4


@pytest.mark.parametrize("kind", ["lost-response", "503"])
def test_of_racing_committers_on_a_bad_network_one_wins(gcs: FakeGcs, tmp_path: Path, kind: str) -> None:
    stores = [new_store(gcs, tmp_path) for _ in range(3)]
    directory = attempt_directory(7, attempt_name(1, 1))
    write_parts(stores[0], directory, 7)
    gcs.fail_next(kind, times=3, match="MANIFEST.json")
    start = threading.Barrier(3)
    manifests: list[Any] = []

    def commit(store: GcsStore) -> None:
        start.wait()
        manifests.append(commit_parts(store, directory, 7))

    threads = [threading.Thread(target=commit, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(manifests) == 3
    assert {str(manifest) for manifest in manifests} == {str(committed(stores[0])[0].manifest)}
    for store in stores:
        store.close()
