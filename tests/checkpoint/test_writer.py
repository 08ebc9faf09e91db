from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from keras_preempt.checkpoint import writer
from keras_preempt.checkpoint.documents import read_document
from keras_preempt.checkpoint.errors import SaveCancelled
from keras_preempt.checkpoint.manifest import Part
from keras_preempt.checkpoint.partition import Slice, check_tiling
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.writer import write_part
from tests.checkpoint.builders import at, snapshot

DIRECTORY = "step-00000003/00001-0001"
KERNEL = np.arange(12, dtype=np.float32).reshape(3, 4)


def slice_of(start: int, stop: int) -> Slice:
    return Slice("kernel", "float32", (3, 4), start, stop)


def test_a_part_is_listed_as_it_was_written(store: LocalStore) -> None:
    part = write_part(
        store, DIRECTORY, 2, [(slice_of(5, 9), KERNEL)], {"mean": np.ones(2)}, {"a": (1, 2)}, at(3)
    )
    name = f"{DIRECTORY}/w00002.part.json"
    assert Part.from_document(read_document(store, name), name) == part
    assert part.state == {"a": [1, 2]}
    assert [entry.name for entry in part.files] == ["w00002.mirrored.safetensors", "w00002.local.safetensors"]
    assert {info.name for info in store.list("")} == {
        name,
        *(f"{DIRECTORY}/{entry.name}" for entry in part.files),
    }


def test_a_worker_under_notice_writes_its_own_tensors_only(store: LocalStore) -> None:
    part = write_part(store, DIRECTORY, 1, (), {"mean": np.ones(2)}, {}, at(3))
    assert [entry.name for entry in part.files] == ["w00001.local.safetensors"]
    assert write_part(store, DIRECTORY, 3, (), {}, {}, at(3)).files == ()


def test_large_shares_are_spread_over_files_of_limited_size(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FILE_SIZE", 20)
    scalar = np.asarray(0, np.int64)
    mirrored: list[tuple[Slice, Array]] = [(slice_of(0, 12), KERNEL), (Slice("n", "int64", (), 0, 1), scalar)]
    part = write_part(store, DIRECTORY, 0, mirrored, {"mean": np.ones(99)}, {}, at(3))
    check_tiling(placed.slice for placed in part.mirrored)
    shared = [entry.name for entry in part.files if entry.name != part.local]
    assert shared == [f"w00000.mirrored-{index:03d}.safetensors" for index in range(3)]
    for name in shared:
        assert sum(placed.slice.nbytes for placed in part.mirrored if placed.file == name) <= 20


def test_what_does_not_fit_or_cannot_be_stored_is_refused_before_anything_is_written(
    store: LocalStore,
) -> None:
    for array in (KERNEL.astype(np.float64), KERNEL.reshape(4, 3), KERNEL.reshape(-1)[5:9]):
        with pytest.raises(ValueError, match=r"Expected 'kernel' as float32\[3, 4\]\. Received: "):
            write_part(store, DIRECTORY, 0, [(slice_of(5, 9), array)], {}, {}, at(3))
    with pytest.raises(TypeError, match="rng"):
        write_part(store, DIRECTORY, 0, [(slice_of(5, 9), KERNEL)], {}, {"rng": np.zeros(2)}, at(3))
    assert snapshot(store.path) == {}


def test_a_save_that_is_cancelled_between_two_files_leaves_no_list_and_nothing_half_written(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FILE_SIZE", 8)
    before_file = mock.Mock(side_effect=[None, None, None, SaveCancelled("enough")])
    with pytest.raises(SaveCancelled):
        write_part(store, DIRECTORY, 0, [(slice_of(0, 12), KERNEL)], {}, {}, at(3), before_file)
    assert before_file.call_count == 4
    names = {Path(name).name for name in snapshot(store.path)}
    assert names <= {f"w00000.mirrored-{index:03d}.safetensors" for index in range(3)}


def test_a_share_is_spread_over_several_files_where_there_is_enough_of_it(store: LocalStore) -> None:
    large = np.zeros(32 << 20, np.uint8)
    slice_ = Slice("table", "uint8", large.shape, 0, large.size)
    files = write_part(store, DIRECTORY, 0, [(slice_, large)], {}, {}, at(3)).files
    assert len(files) == 4
    assert max(entry.size for entry in files) < (8 << 20) + 1000
