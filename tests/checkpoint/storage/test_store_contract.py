"""What every store must do, asked of the local one and of a bucket alike."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from keras_preempt.checkpoint.errors import AlreadyExists, NotFound, StoreUnavailable, TooLarge, UnsafeName
from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.layout import attempt_directory, attempt_name
from keras_preempt.checkpoint.reader import load, verify
from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.store import FileInfo, Store
from tests.checkpoint.builders import (
    commit_parts,
    local,
    model,
    refuse_links,
    retain,
    save,
    snapshot,
    write_parts,
)
from tests.checkpoint.campaign_store import MemoryStore
from tests.checkpoint.round_table import together
from tests.checkpoint.storage.buckets import FAKES, emulated_bucket, fake_bucket, new_store, write
from tests.checkpoint.storage.test_store import HOSTILE, operations_on

EMULATORS = ("moto", "azurite")


@pytest.fixture(
    params=[
        "memory",
        "local",
        "no hard links",
        *FAKES,
        *(f"whole {scheme}" for scheme in FAKES),
        *(pytest.param(name, marks=pytest.mark.chaos) for name in EMULATORS),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    if request.param == "memory":  # the one of the campaign: what it shows must hold for the others
        monkeypatch.setattr(MemoryStore, "file_size", lambda self, total: 1 << 20)
        yield MemoryStore()
        return
    if request.param == "no hard links":
        refuse_links(monkeypatch)
    if request.param in EMULATORS:
        run = secrets.token_hex(8)  # moto keeps what other tests have stored.
        with emulated_bucket(request.param) as url, closing(open_store(f"{url}/some/{run}")) as made:
            made.prepare()
            yield made
        return
    scheme = request.param.split()[-1]
    if scheme not in FAKES:
        made: Store = LocalStore(tmp_path / "new" / "run")
        made.prepare()
        yield made
        made.close()
        assert not list((tmp_path / "new").rglob(".tmp-*")), "nothing half written is left"
        return
    with fake_bucket(scheme) as fake:
        (tmp_path / "staging").mkdir()
        place = "bucket" if "whole" in request.param else "bucket/some/run"
        made = new_store(fake, tmp_path / "staging", place)
        made.prepare()
        yield made
        made.close()


def test_a_created_file_is_read_back_also_if_it_was_asked_for_ahead_unless_it_is_too_large(
    store: Store,
) -> None:
    assert store.create("a/b/c", b"data") == FileInfo("a/b/c", 4)
    assert store.read("a/b/c", limit=4) == b"data"
    assert store.stat("a/b/c") == FileInfo("a/b/c", 4)
    with store.open("a/b/c") as stream:
        assert stream.read(1) == b"d"
        assert stream.read() == b"ata"
        assert stream.read(1) == b""
    with pytest.raises(TooLarge, match="3"):
        store.read("a/b/c", limit=3)
    store.read_ahead("a/b/c")
    assert store.read("a/b/c", limit=9) == b"data"


@pytest.mark.parametrize("size", [0, 1, (8 << 20) + 1, (17 << 20) + 7])
def test_a_streamed_file_of_any_size_is_read_back(store: Store, size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    write(store, "folder/file", data[:100], memoryview(data)[100:], bytearray())
    assert store.stat("folder/file").size == size
    with store.open("folder/file") as stream:
        assert stream.read() == data
    assert store.read("folder/file", limit=size) == data


def test_nothing_is_ever_overwritten(store: Store) -> None:
    store.create("a", b"first")
    with pytest.raises(AlreadyExists, match="'a'"):
        store.create("a", b"second")
    with pytest.raises(AlreadyExists, match="'a'"):
        write(store, "a", b"third")
    assert store.read("a", limit=9) == b"first"


def test_one_of_many_racing_creators_wins(store: Store) -> None:
    outcomes = together([lambda n=n: store.create("folder/a", b"%d" % n) for n in range(8)])
    (won,) = (n for n, outcome in enumerate(outcomes) if not isinstance(outcome, AlreadyExists))
    assert outcomes[won] == FileInfo("folder/a", 1)
    assert store.read("folder/a", limit=9) == b"%d" % won


def test_a_streamed_file_is_invisible_until_it_is_complete(store: Store) -> None:
    with store.writer("folder/a") as writer:
        writer.write(b"one ")
        assert store.list("") == []
        assert store.children("folder") == []
        with pytest.raises(NotFound):
            store.stat("folder/a")
        writer.write(b"two")
    assert store.read("folder/a", limit=100) == b"one two"


def test_an_interrupted_write_and_a_repeated_preparation_leave_nothing_behind(store: Store) -> None:
    def interrupt() -> None:
        with store.writer("folder/a") as writer:
            writer.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert store.list("") == []
    store.prepare()
    assert store.list("") == []


def test_files_written_together_are_all_durable_at_the_end(store: Store) -> None:
    names = [f"folder/{number:02d}" for number in range(20)]
    with store.overlapped():
        for name in names:
            write(store, name, name.encode() * 1000)
    assert [info.name for info in store.list("")] == names
    assert all(store.read(name, limit=99999) == name.encode() * 1000 for name in names)


def test_a_failure_among_files_written_together_surfaces_at_the_end_at_the_latest(store: Store) -> None:
    store.create("folder/1", b"taken")

    def write_all() -> None:
        with store.overlapped():
            for number in range(3):
                write(store, f"folder/{number}", b"data")

    with pytest.raises(AlreadyExists, match="folder/1"):
        write_all()
    assert store.read("folder/1", limit=9) == b"taken"


def test_a_missing_file_is_not_found(store: Store) -> None:
    store.create("folder/file", b"")
    for name in ("a", "a/b", "folder"):
        for operation in (store.open, store.stat, lambda name: store.read(name, limit=1)):
            with pytest.raises(NotFound, match=f"'{name}'"):
                operation(name)
    with pytest.raises(NotFound, match="'a'"):
        store.delete("a")
    assert store.list("a") == []
    assert store.children("a") == []


def test_listing_shows_files_below_a_prefix_and_children_what_is_directly_below(store: Store) -> None:
    for name in ("a/1", "a/b/2", "ab/3", "c"):
        store.create(name, name.encode())
    assert store.list("") == [FileInfo(n, len(n)) for n in ("a/1", "a/b/2", "ab/3", "c")]
    assert store.list("a") == [FileInfo("a/1", 3), FileInfo("a/b/2", 5)]
    assert store.children("") == ["a", "ab", "c"]
    assert store.children("a") == ["1", "b"]


def test_deleting_removes_only_what_was_named_and_frees_the_name(store: Store) -> None:
    for name in ("a/b/1", "a/b/2", "a/bc/3", "a/c"):
        store.create(name, b"")
    store.stat("a/c")
    store.delete("a/c")
    store.create("a/c", b"again")
    assert store.read("a/c", limit=9) == b"again"
    store.delete("a/c")
    store.delete_tree("a/b")
    store.delete_tree("a/b")
    assert [info.name for info in store.list("")] == ["a/bc/3"]
    store.delete_tree("a/bc/3")
    assert store.children("") == []


def test_every_operation_refuses_a_name_that_could_lead_elsewhere(store: Store, tmp_path: Path) -> None:
    before = snapshot(tmp_path)
    for name in HOSTILE:
        for operation in operations_on(store, name):
            with pytest.raises(UnsafeName, match=r"Expected .* Received: "):
                operation()
    assert snapshot(tmp_path) == before


def test_a_log_keeps_what_was_appended_in_order_and_goes_on_after_a_restart(store: Store) -> None:
    for lines in ((b"1\n", b"2\n"), (b"3\n",)):
        log = store.append_log("events/a.jsonl")
        for line in lines:
            log.write(line)
        log.close()
        log.close()
    assert b"".join(store.read(info.name, limit=99) for info in store.list("events")) == b"1\n2\n3\n"
    with pytest.raises(StoreUnavailable, match="after close"):
        log.write(b"4\n")


def test_an_error_about_too_little_space_says_how_much_is_needed(store: Store) -> None:
    store.check_space(1)
    with pytest.raises(StoreUnavailable, match=r"Expected 1,000,000,000,000\.0 MB of free space.*Received"):
        store.check_space(10**18)


def test_a_closed_store_can_be_used_again(store: Store) -> None:
    store.create("a", b"data")
    store.close()
    store.close()
    assert store.read("a", limit=9) == b"data"
    write(store, "b", b"x" * (9 << 20))
    assert store.stat("b").size == 9 << 20


def test_a_checkpoint_is_written_committed_verified_loaded_and_rotated(store: Store) -> None:
    infos = [save(store, step, round=step) for step in (1, 2, 3)]
    assert [info.step for info in committed(store)] == [3, 2, 1]
    verify(store, infos[2])
    loaded = load(store, infos[2], 1, 2)
    for name, array in model(3).items():
        np.testing.assert_array_equal(loaded.values.whole[name], array)
    np.testing.assert_array_equal(loaded.values.local["moving_mean"], local(3, 1)["moving_mean"])
    assert retain(store, Retention(1), 1) == [infos[1].directory, infos[0].directory]
    assert [info.step for info in committed(store)] == [3]
    verify(store, infos[2])


def test_racing_committers_make_one_manifest_and_all_return_it(store: Store) -> None:
    directory = attempt_directory(7, attempt_name(1, 1))
    write_parts(store, directory, 7)
    calls = [lambda n=n: commit_parts(store, directory, 7, now=lambda: float(n)) for n in range(6)]
    assert together(calls) == [committed(store)[0].manifest] * 6
