from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from keras_preempt.checkpoint import writer
from keras_preempt.checkpoint.documents import read_document
from keras_preempt.checkpoint.errors import SaveCancelled
from keras_preempt.checkpoint.manifest import Part
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.values import Box, Value, check_cover
from keras_preempt.checkpoint.writer import WorkerShare, write_part
from tests.checkpoint.builders import at, snapshot

DIRECTORY = "step-00000003/00001-0001"
KERNEL = np.arange(12, dtype=np.float32).reshape(3, 4)


def run(start: int, stop: int) -> tuple[Box, Array]:
    return Value("kernel", "float32", (3, 4)).run(start, stop), KERNEL.reshape(-1)[start:stop]


def share(*boxes: tuple[Box, Array], state: Any = None, **local: Array) -> WorkerShare:
    return WorkerShare(boxes, local, state or {}, at(3))


def test_a_part_is_listed_as_it_was_written(store: LocalStore) -> None:
    part = write_part(store, DIRECTORY, 2, share(run(5, 9), state={"a": (1, 2)}, mean=np.ones(2)))
    name = f"{DIRECTORY}/w00002.part.json"
    assert Part.from_document(read_document(store, name), name) == part
    assert part.state == {"a": [1, 2]}
    assert [entry.name for entry in part.files] == ["w00002.mirrored.safetensors", "w00002.local.safetensors"]
    assert {info.name for info in store.list("")} == {
        name,
        *(f"{DIRECTORY}/{entry.name}" for entry in part.files),
    }


def test_a_worker_under_notice_writes_its_own_tensors_only(store: LocalStore) -> None:
    part = write_part(store, DIRECTORY, 1, share(mean=np.ones(2)))
    assert [entry.name for entry in part.files] == ["w00001.local.safetensors"]
    assert write_part(store, DIRECTORY, 3, share()).files == ()


def test_large_shares_are_spread_over_files_of_limited_size(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FILE_SIZE", 20)
    scalar = np.asarray(0, np.int64)
    number = Value("n", "int64", ()).run(0, 1), scalar.reshape(1)
    part = write_part(store, DIRECTORY, 0, share(run(0, 12), number, mean=np.ones(99)))
    check_cover(placed.box for placed in part.boxes)
    shared = [entry.name for entry in part.files if entry.name != part.local]
    assert shared == [f"w00000.mirrored-{index:03d}.safetensors" for index in range(3)]
    for name in shared:
        assert sum(placed.box.nbytes for placed in part.boxes if placed.file == name) <= 20


def test_what_does_not_fit_or_cannot_be_stored_is_refused_before_anything_is_written(
    store: LocalStore,
) -> None:
    box, array = run(5, 9)
    for wrong in (array.astype(np.float64), array.reshape(2, 2), KERNEL):
        with pytest.raises(ValueError, match=r"Expected 'kernel\[5:9\]' as float32\[4\]\. Received: "):
            write_part(store, DIRECTORY, 0, share((box, wrong)))
    with pytest.raises(TypeError, match="rng"):
        write_part(store, DIRECTORY, 0, share(run(5, 9), state={"rng": np.zeros(2)}))
    assert snapshot(store.path) == {}


def test_a_save_that_is_cancelled_between_two_files_leaves_no_list_and_nothing_half_written(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FILE_SIZE", 8)
    before_file = mock.Mock(side_effect=[None, None, None, SaveCancelled("enough")])
    with pytest.raises(SaveCancelled):
        write_part(store, DIRECTORY, 0, share(run(0, 12)), before_file)
    assert before_file.call_count == 4
    names = {Path(name).name for name in snapshot(store.path)}
    assert names <= {f"w00000.mirrored-{index:03d}.safetensors" for index in range(3)}


def test_a_share_is_spread_over_several_files_where_there_is_enough_of_it(store: LocalStore) -> None:
    large = np.zeros(32 << 20, np.uint8)
    table = Value("table", "uint8", large.shape).run(0, large.size)
    files = write_part(store, DIRECTORY, 0, share((table, large))).files
    assert len(files) == 4
    assert max(entry.size for entry in files) < (8 << 20) + 1000
