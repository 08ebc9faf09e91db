from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from keras_preempt.checkpoint.errors import AlreadyExists, NotFound, StoreUnavailable, UnsafeName
from keras_preempt.checkpoint.storage import local_writing, posix_files
from keras_preempt.checkpoint.storage.local import LocalStore
from tests.checkpoint.builders import refuse_links, snapshot


@pytest.fixture(params=["hard links", "no hard links"], autouse=True)
def _file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "no hard links":
        refuse_links(monkeypatch)


def test_a_name_taken_while_a_file_is_written_stays_as_it_is(store: LocalStore) -> None:

    def write_slowly() -> None:
        with store.writer("a") as writer:
            writer.write(b"slow")
            store.create("a", b"fast")

    with pytest.raises(AlreadyExists):
        write_slowly()
    assert snapshot(store.path) == {"a": b"fast"}


@pytest.mark.parametrize("together", [False, True])
def test_a_full_disk_is_an_error_and_leaves_nothing_behind(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    def write() -> None:
        with store.overlapped() if together else contextlib.nullcontext():
            for name in ("a", "b", "c"):
                store.create(f"folder/{name}", b"data")

    store.create("folder/other", b"")
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=full))
    with pytest.raises(StoreUnavailable, match=r"'folder/[abc]'.*No space left"):
        write()
    assert snapshot(store.path) == {"folder/other": b""}


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"]])
def test_each_file_is_durable_before_its_name_and_the_folder_last(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, names: list[str]
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
    with store.overlapped() if len(names) > 1 else contextlib.nullcontext():
        for name in names:
            store.create(name, b"data")
    assert seen == [*(("file", number) for number in range(len(names))), ("folder", len(names))]


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


def test_a_short_write_is_continued(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data)[:3]))
    store.create("a", b"0123456789")
    assert store.read("a", limit=10) == b"0123456789"


def test_half_written_files_are_not_listed_and_empty_folders_go_with_what_was_in_them(
    store: LocalStore,
) -> None:
    for name in ("a/b/1", "a/c/3"):
        store.create(name, b"")
    (store.path / "a/b/.tmp-1-x").write_bytes(b"half")
    assert [info.name for info in store.list("")] == ["a/b/1", "a/c/3"]
    store.delete_tree("a/b")
    assert store.children("a") == ["c"]
    store.delete("a/c/3")
    assert list(store.path.iterdir()) == []


def test_a_folder_a_pipe_and_what_would_lie_below_a_file_are_no_files_and_block_nobody(
    store: LocalStore,
) -> None:
    store.create("file", b"")
    (store.path / "folder").mkdir()
    os.mkfifo(store.path / "pipe")
    assert [info.name for info in store.list("")] == ["file"]
    for name in ("file/b", "folder", "pipe"):
        for operation in (store.open, store.stat, lambda name: store.read(name, limit=1)):
            with pytest.raises((NotFound, StoreUnavailable)):
                operation(name)


def test_no_link_leads_out_of_the_directory(store: LocalStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (store.path / "folder").symlink_to(outside)
    (store.path / "file").symlink_to(outside / "secret")
    store.create("tree/deep/file", b"")
    (store.path / "tree/deep/link").symlink_to(outside)
    for name in ("folder/secret", "file"):
        for operation in (store.open, store.stat, store.append_log, lambda name: store.read(name, limit=99)):
            with pytest.raises(UnsafeName, match="symbolic link"):
                operation(name)
    calls = (partial(store.create, "folder/new", b""), partial(store.delete, "folder/secret"))
    for call in (*calls, partial(store.list, "folder")):
        with pytest.raises(UnsafeName):
            call()
    assert [info.name for info in store.list("")] == ["tree/deep/file"]
    for name in ("folder", "tree"):
        store.delete_tree(name)
    assert [path.name for path in store.path.iterdir()] == ["file"]
    assert snapshot(outside) == {"secret": b"secret"}


def test_a_line_of_a_log_is_there_whole_or_not_at_all(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = store.append_log("log")
    log.write(b"one\n")

    def half(descriptor: int, data: bytes) -> None:
        os.write(descriptor, data[:2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(local_writing, "write_all", half)
        with pytest.raises(StoreUnavailable, match="No space left"):
            log.write(b"two\n")
    log.write(b"three\n")
    log.close()
    assert store.read("log", limit=99) == b"one\nthree\n"


def test_the_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    LocalStore(tmp_path / "link").create("a/b", b"x")
    assert snapshot(tmp_path / "real") == {"a/b": b"x"}


def test_folders_removed_by_somebody_else_are_made_again(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = posix_files.flush_folder
    calls = []

    def flush_folder(folder: Path) -> None:
        real(folder)
        calls.append(folder)
        if len(calls) in (1, 3):  # The outer one is there, then also the inner one.
            next(folder.iterdir()).rmdir()

    monkeypatch.setattr(posix_files, "flush_folder", flush_folder)
    store.create("outer/inner/a", b"x")
    assert snapshot(store.path) == {"outer/inner/a": b"x"}


def test_who_removes_the_last_file_of_a_folder_disturbs_nobody_who_writes_into_it(store: LocalStore) -> None:
    def write_and_remove(member: int) -> None:
        for number in range(100):
            name = f"step/attempt/{member}-{number}"
            store.create(name, b"x")
            store.delete(name)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write_and_remove, range(8)))
    assert snapshot(store.path) == {}


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/keras_preempt/run"])
def test_an_unusable_directory_is_an_error_that_names_it(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    store = LocalStore(tmp_path / place)
    with pytest.raises(StoreUnavailable, match=re.escape(store.url) + r".*pass another directory"):
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


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.EROFS, "mounted read-only"),
        (errno.EDQUOT, "quota"),
        (errno.ESTALE, "mount it again"),
        (errno.EIO, "dmesg"),
        (errno.EACCES, "chown"),
        (errno.ETIMEDOUT, "the health of that file system"),
    ],
)
def test_an_error_of_the_system_is_told_with_what_cures_it(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int, says: str
) -> None:
    def fail(descriptor: int, data: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(StoreUnavailable, match=f"{os.strerror(number)}.*{says}") as caught:
        store.prepare()
    assert ("chown" in str(caught.value)) == (number == errno.EACCES)


def test_a_log_keeps_what_several_writers_append(store: LocalStore) -> None:
    one, other = store.append_log("events/a.jsonl"), store.append_log("events/a.jsonl")
    one.write(b"1\n")
    other.write(b"2\n")
    assert store.read("events/a.jsonl", limit=99) == b"1\n2\n"  # before any close
    one.close()
    other.close()
    with pytest.raises(StoreUnavailable, match="after close"):
        other.write(b"")
