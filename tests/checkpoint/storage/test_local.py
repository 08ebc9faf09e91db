from __future__ import annotations

import errno
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint.errors import AlreadyExists, NotFound, StoreUnavailable, TooLarge, UnsafeName
from keras_preempt.checkpoint.storage import local_writing, posix_files
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.store import FileInfo
from tests.checkpoint.builders import refuse_links, snapshot


@pytest.fixture(params=["hard links", "no hard links"], autouse=True)
def _file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "no hard links":
        refuse_links(monkeypatch)


def test_a_created_file_is_read_back(store: LocalStore) -> None:
    assert store.create("a/b/c", b"data") == FileInfo("a/b/c", 4)
    assert store.read("a/b/c", limit=4) == b"data"
    assert store.stat("a/b/c") == FileInfo("a/b/c", 4)
    with store.open("a/b/c") as stream:
        assert stream.read() == b"data"


def test_nothing_is_ever_overwritten(store: LocalStore) -> None:
    store.create("a", b"first")
    with pytest.raises(AlreadyExists):
        store.create("a", b"second")
    with pytest.raises(AlreadyExists), store.writer("a") as writer:
        writer.write(b"third")
    assert snapshot(store.path) == {"a": b"first"}


def test_a_name_taken_while_a_file_is_written_stays_as_it_is(store: LocalStore) -> None:

    def write_slowly() -> None:
        with store.writer("a") as writer:
            writer.write(b"slow")
            store.create("a", b"fast")

    with pytest.raises(AlreadyExists):
        write_slowly()
    assert snapshot(store.path) == {"a": b"fast"}


def test_an_interrupted_write_leaves_nothing_behind(store: LocalStore) -> None:
    def interrupt() -> None:
        with store.writer("folder/a") as writer:
            writer.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert snapshot(store.path) == {}


def test_a_full_disk_is_an_error_and_leaves_nothing_behind(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store.create("folder/other", b"")
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StoreUnavailable, match="No space left"):
        store.create("folder/a", b"data")
    assert snapshot(store.path) == {"folder/other": b""}


def test_data_is_durable_before_its_name_and_the_name_before_the_return(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, bool]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        kind = "folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file"
        seen.append((kind, (store.path / "a").exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    store.create("a", b"data")
    assert seen == [("file", False), ("folder", True)]


def test_of_files_written_together_each_is_durable_before_its_name_and_the_folder_last(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        kind = "folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file"
        named = {path.name for path in store.path.iterdir() if not path.name.startswith(".tmp-")}
        seen.append((kind, len(named)))
        real(descriptor)

    monkeypatch.setattr(local_writing, "FLUSHES", 1)
    monkeypatch.setattr(os, "fsync", fsync)
    with store.overlapped():
        for name in ("a", "b", "c"):
            store.create(name, b"data")
    assert seen == [("file", 0), ("file", 1), ("file", 2), ("folder", 3)]


def test_files_written_together_are_flushed_while_others_are_written(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, flushing, written = os.fsync, threading.Semaphore(0), threading.Event()

    def fsync(descriptor: int) -> None:
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            flushing.release()
            assert written.wait(30)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with store.overlapped():
        store.create("a", b"data")
        store.create("b", b"data")
        assert flushing.acquire(timeout=30)
        assert flushing.acquire(timeout=30)
        assert store.list("") == []
        written.set()
    assert [info.name for info in store.list("")] == ["a", "b"]


def test_a_block_that_is_left_early_leaves_no_half_written_file(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_writing, "FLUSHES", 1)

    def cancel() -> None:
        with store.overlapped():
            store.create("folder/a", b"data")
            with store.writer("folder/b") as writer:
                writer.write(b"half")
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cancel()
    assert set(snapshot(store.path)) <= {"folder/a"}


def test_a_disk_that_fills_up_behind_a_file_written_together_is_an_error_and_leaves_nothing(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("folder/other", b"")

    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def write() -> None:
        with store.overlapped():
            for name in ("a", "b", "c"):
                store.create(f"folder/{name}", b"data")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StoreUnavailable, match=r"'folder/[abc]'.*No space left"):
        write()
    assert snapshot(store.path) == {"folder/other": b""}


def test_a_short_write_is_continued(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data)[:3]))
    store.create("a", b"0123456789")
    assert store.read("a", limit=10) == b"0123456789"


def test_a_file_that_is_too_large_is_not_read(store: LocalStore) -> None:
    with open(store.path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(TooLarge, match=str(1 << 40)):
        store.read("sparse", limit=1 << 20)


def test_a_missing_file_is_not_found(store: LocalStore) -> None:
    store.create("file", b"")
    (store.path / "folder").mkdir()
    for name in ("a", "a/b", "file/b", "folder"):
        for operation in (store.open, store.stat, lambda name: store.read(name, limit=1)):
            with pytest.raises((NotFound, StoreUnavailable)):
                operation(name)
    with pytest.raises(NotFound):
        store.delete("a")
    assert store.list("a") == []
    assert store.children("a") == []


def test_a_pipe_in_the_directory_blocks_nobody(store: LocalStore) -> None:
    os.mkfifo(store.path / "pipe")
    with pytest.raises(NotFound):
        store.read("pipe", limit=1)
    assert store.list("") == []


def test_listing_shows_files_below_a_prefix_and_children_what_is_directly_below(store: LocalStore) -> None:
    for name in ("a/1", "a/b/2", "ab/3", "c"):
        store.create(name, name.encode())
    (store.path / "a" / ".tmp-1-x").write_bytes(b"half")
    assert [info.name for info in store.list("")] == ["a/1", "a/b/2", "ab/3", "c"]
    assert store.list("a") == [FileInfo("a/1", 3), FileInfo("a/b/2", 5)]
    assert store.children("") == ["a", "ab", "c"]
    assert store.children("a") == ["1", "b"]


def test_deleting_leaves_no_empty_folders_and_no_other_file(store: LocalStore) -> None:
    for name in ("a/b/1", "a/b/2", "a/c/3"):
        store.create(name, b"")
    store.delete("a/b/1")
    assert [info.name for info in store.list("")] == ["a/b/2", "a/c/3"]
    (store.path / "a/b/.tmp-1-x").write_bytes(b"half")
    store.delete_tree("a/b")
    store.delete_tree("a/b")
    assert store.children("a") == ["c"]
    store.delete("a/c/3")
    assert list(store.path.iterdir()) == []


def test_no_link_leads_out_of_the_directory(store: LocalStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (store.path / "folder").symlink_to(outside)
    (store.path / "file").symlink_to(outside / "secret")
    for name in ("folder/secret", "file"):
        for operation in (store.open, store.stat, store.append_log, lambda name: store.read(name, limit=99)):
            with pytest.raises(UnsafeName, match="symbolic link"):
                operation(name)
    with pytest.raises(UnsafeName):
        store.create("folder/new", b"")
    with pytest.raises(UnsafeName):
        store.delete("folder/secret")
    with pytest.raises(UnsafeName):
        store.list("folder")
    assert store.list("") == []
    store.delete_tree("folder")
    assert not (store.path / "folder").is_symlink()
    assert snapshot(outside) == {"secret": b"secret"}


def test_removing_a_tree_follows_no_link_in_it(store: LocalStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"")
    store.create("tree/deep/file", b"")
    (store.path / "tree/deep/link").symlink_to(outside)
    store.delete_tree("tree")
    assert list(store.path.iterdir()) == []
    assert (outside / "precious").exists()


def test_the_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    LocalStore(tmp_path / "link").create("a/b", b"x")
    assert snapshot(tmp_path / "real") == {"a/b": b"x"}


def test_a_folder_removed_by_somebody_else_is_made_again(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = posix_files.make_folder
    calls = []

    def make_folder(folder: Path) -> None:
        real(folder)
        calls.append(folder)
        if len(calls) < 3:
            folder.rmdir()

    monkeypatch.setattr(posix_files, "make_folder", make_folder)
    store.create("folder/a", b"x")
    assert snapshot(store.path) == {"folder/a": b"x"}


def test_preparing_makes_the_directory_and_leaves_it_empty(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "new" / "run")
    store.prepare()
    store.prepare()
    assert list(store.path.iterdir()) == []


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/keras_preempt/run"])
def test_an_unusable_directory_is_an_error_that_names_it(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    store = LocalStore(tmp_path / place)
    with pytest.raises(StoreUnavailable, match=re.escape(store.url) + r".*Correct its permissions"):
        store.prepare()
    assert snapshot(tmp_path) == {"file": b"mine"}


def test_an_unwritable_directory_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: Any, flags: int, *rest: int) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreUnavailable, match=rf"{re.escape(str(tmp_path))}.*Permission denied"):
        LocalStore(tmp_path).prepare()


def test_a_log_keeps_what_several_writers_append(store: LocalStore) -> None:
    one, other = store.append_log("events/a.jsonl"), store.append_log("events/a.jsonl")
    one.write(b"1\n")
    other.write(b"2\n")
    assert store.read("events/a.jsonl", limit=99) == b"1\n2\n"  # before any close
    one.write(b"3\n")
    one.close()
    one.close()
    other.close()
    assert store.read("events/a.jsonl", limit=99) == b"1\n2\n3\n"
    with pytest.raises(StoreUnavailable, match="after close"):
        one.write(b"4\n")
    with pytest.raises(StoreUnavailable, match="after close"):
        other.write(b"")
