from __future__ import annotations

import dataclasses
import os
import shutil
import threading
from typing import Any

import numpy as np
import pytest

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import CorruptCheckpoint, UnsupportedFormat
from keras_preempt.checkpoint.finding import CheckpointInfo, committed
from keras_preempt.checkpoint.layout import MANIFEST
from keras_preempt.checkpoint.reader import Reading, load, verify
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.writer import WorkerShare, write_part
from tests.checkpoint.builders import (
    at,
    commit_parts,
    little_memory_taken,
    local,
    model,
    save,
    shares_of,
    state,
    values_of,
    write_parts,
)


def equal(one: dict[str, Array], other: dict[str, Array]) -> bool:
    return [(name, each.dtype, each.shape, each.tobytes()) for name, each in sorted(one.items())] == [
        (name, each.dtype, each.shape, each.tobytes()) for name, each in sorted(other.items())
    ]


def states(store: LocalStore, info: CheckpointInfo) -> dict[int, Any]:
    """That of every worker that has a part."""
    return {own.member: own.state for own in Reading(store, info).load_all()[1]}


def test_every_worker_gets_all_mirrored_tensors_and_its_own_local_ones(store: LocalStore) -> None:
    info = save(store, 3)
    verify(store, info)
    for member in (0, 1):
        loaded = load(store, info, member, 2)
        assert equal(loaded.values.whole, model(3))
        assert equal(loaded.values.local, local(3, member))
        assert loaded.state == state(3, member)
        assert loaded.manifest == info.manifest
        assert loaded.substituted_from is None
        assert all(array.flags.writeable for array in loaded.values.whole.values())
    assert states(store, info) == {0: state(3, 0), 1: state(3, 1)}


def save_large(store: LocalStore, size: int) -> CheckpointInfo:
    """Saves one cut tensor of `size` bytes and a small one, as one worker."""
    incarnations.claim(store, {})
    arrays = {"table": np.arange(size // 4, dtype=np.uint32), "bias": np.ones(3, np.float32)}
    directory = "step-00000003/00001-0001"
    write_part(store, directory, 0, WorkerShare(shares_of(arrays)[0], {"mean": np.ones(2)}, {}, at(3)))
    commit_parts(store, directory, 3, members=1, writers=(0,), values=values_of(arrays))
    return committed(store)[0]


def test_several_files_are_read_at_once(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    info = save_large(store, 32 << 20)
    both, real = threading.Barrier(2), store.open

    def open_together(name: str, *moved: Any) -> Any:
        if name.endswith(("mirrored-000.safetensors", "mirrored-001.safetensors")):
            both.wait(30)
        return real(name, *moved)

    monkeypatch.setattr(store, "open", open_together)
    loaded = load(store, info, 0, 1)
    assert np.array_equal(loaded.values.whole["table"], np.arange(8 << 20))
    assert loaded.values.local["mean"].tolist() == [1, 1]
    verify(store, info)


def test_pieces_are_read_to_their_place_without_a_second_copy(store: LocalStore) -> None:
    info = save_large(store, 64 << 20)
    with little_memory_taken((64 + 4) << 20):
        load(store, info, 0, 1)


def test_memory_is_taken_only_when_all_files_have_the_listed_sizes(store: LocalStore) -> None:
    info = save_large(store, 32 << 20)
    last = sorted((store.path / info.directory).glob("*.mirrored-*"))[-1]
    os.truncate(last, last.stat().st_size - 1)
    with little_memory_taken(4 << 20), pytest.raises(CorruptCheckpoint, match=last.name):
        load(store, info, 0, 1)


def test_a_worker_without_a_part_gets_that_of_the_lowest_one_and_is_told(store: LocalStore) -> None:
    incarnations.claim(store, {})
    directory = "step-00000003/00001-0001"
    write_parts(store, directory, 3, members=(1,), writers=(1,))
    commit_parts(store, directory, 3, writers=(1,), doomed=(0,))
    (info,) = committed(store)
    loaded = load(store, info, 0, 2)
    assert loaded.substituted_from == 1
    assert equal(loaded.values.local, local(3, 1))
    assert loaded.state == state(3, 1)
    assert equal(loaded.values.whole, model(3))
    assert load(store, info, 1, 2).substituted_from is None
    assert load(store, info, 2, 3).substituted_from == 1  # It did not exist then.
    assert states(store, info) == {1: state(3, 1)}


@pytest.mark.parametrize(("member", "members"), [(-1, 2), (2, 2), (0, 0)])
def test_an_impossible_worker_number_is_refused(store: LocalStore, member: int, members: int) -> None:
    info = save(store, 3)
    with pytest.raises(ValueError, match="Expected a worker numbered"):
        load(store, info, member, members)


def test_checkpoints_are_listed_by_progress_the_furthest_first(store: LocalStore) -> None:
    order = [
        (2, at(2), 10),
        (4, at(4, "epoch", epoch=0), 11),
        (4, at(4, "train", epoch=0), 2),
        (4, at(4, "train", epoch=0), 3),
        (4, at(4, "validation", epoch=0), 14),
        (4, at(0, "epoch", epoch=1), 15),
        (4, at(4, "end", epoch=0), 16),
        (10, at(10), 17),
    ]
    infos = {}
    for number in (3, 7, 0, 5, 1, 6, 2, 4):  # in another order than the expected one
        step, position, round = order[number]
        infos[number] = save(store, step, round=round, position=position)
    found = [info.directory for info in committed(store)]
    assert found == [infos[number].directory for number in reversed(range(len(order)))]


def test_a_checkpoint_with_an_unreadable_manifest_is_listed_with_the_reason(store: LocalStore) -> None:
    save(store, 3)
    good = save(store, 5, round=2)
    bad = save(store, 5, round=3)
    newer = save(store, 7, round=4)
    (store.path / bad.directory / MANIFEST).write_bytes(b"{")
    (store.path / newer.directory / MANIFEST).write_bytes(b'{"format":99}')
    found = committed(store)
    assert [info.directory for info in found[:3]] == [newer.directory, bad.directory, good.directory]
    assert [info.error for info in found[2:]] == [None, None]
    for info, error in zip(found, (UnsupportedFormat, CorruptCheckpoint), strict=False):
        assert type(info.error) is error
        for use in (lambda info: load(store, info, 0, 2), lambda info: verify(store, info)):
            with pytest.raises(error):
                use(info)


def test_a_manifest_copied_to_another_place_is_refused(store: LocalStore) -> None:
    info = save(store, 3)
    shutil.copytree(store.path / info.directory, store.path / "step-00000009" / info.attempt)
    assert info.manifest is not None
    (copied, original) = committed(store)
    assert isinstance(copied.error, CorruptCheckpoint)
    assert original == info
    with pytest.raises(CorruptCheckpoint):
        load(store, dataclasses.replace(info, manifest=None), 0, 2)


def test_uncommitted_attempts_and_other_files_in_the_directory_are_ignored(store: LocalStore) -> None:
    assert committed(store) == []
    info = save(store, 3)
    write_parts(store, "step-00000009/00001-0002", 9)  # not committed
    for name in (
        "step-3/00001-0001/MANIFEST.json",
        "step-00000004/notes/MANIFEST.json",
        "step-00000005",
        "x/y",
    ):
        store.create(name, b"mine")
    assert committed(store) == [info]
