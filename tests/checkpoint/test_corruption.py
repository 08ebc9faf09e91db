from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from keras_preempt.checkpoint.documents import decode, encode
from keras_preempt.checkpoint.errors import CheckpointError, CorruptCheckpoint
from keras_preempt.checkpoint.layout import MANIFEST
from keras_preempt.checkpoint.reader import committed, load, verify
from keras_preempt.checkpoint.storage.local import LocalStore
from tests.checkpoint.builders import save, snapshot

OFFSETS = 60  # samples in each file


def refused(store: LocalStore, directory: str) -> None:
    """Makes sure that a damaged checkpoint is not restored, but stays where it is."""
    before = snapshot(store.path)
    info = next(info for info in committed(store) if info.directory == directory)
    with pytest.raises(CheckpointError, match=r"Expected .* Received: "):
        verify(store, info)
    for member in (0, 1):
        with pytest.raises(CheckpointError):
            load(store, info, member, 2)
    assert snapshot(store.path) == before


def files_of(store: LocalStore, directory: str) -> list[Path]:
    return sorted(path for path in (store.path / directory).iterdir())


@pytest.mark.parametrize("damage", ["flip", "cut", "grow"])
def test_damage_anywhere_in_any_file_is_never_restored(store: LocalStore, damage: str) -> None:
    info = save(store, 3)
    paths = files_of(store, info.directory)
    assert len(paths) == 7
    chosen = random.Random(damage)
    for path in paths:
        data = path.read_bytes()
        # The whole of the beginning, where headers are, and samples of the rest.
        offsets = {0, 1, 7, 8, len(data) - 1, *(chosen.randrange(len(data)) for _ in range(OFFSETS))}
        for offset in sorted(offsets):
            if damage == "flip":
                bit = 1 << chosen.randrange(8)
                path.write_bytes(data[:offset] + bytes([data[offset] ^ bit]) + data[offset + 1 :])
            elif damage == "cut":
                path.write_bytes(data[:offset])
            else:
                path.write_bytes(data + bytes(offset + 1))
            with pytest.raises(CheckpointError):
                verify(store, next(iter(committed(store))))
            # A worker reads all but the local tensors of the others.
            member = 1 if path.name.startswith("w00001") else 0
            with pytest.raises(CheckpointError):
                load(store, next(iter(committed(store))), member, 2)
        path.write_bytes(data)
    verify(store, next(iter(committed(store))))


def test_a_missing_file_is_never_overlooked(store: LocalStore) -> None:
    info = save(store, 3)
    for path in files_of(store, info.directory):
        if path.name == MANIFEST:
            continue
        data = path.read_bytes()
        path.unlink()
        with pytest.raises(CorruptCheckpoint, match=path.name):
            verify(store, info)
        path.write_bytes(data)
    verify(store, info)


def test_files_of_two_checkpoints_are_never_mixed(store: LocalStore) -> None:
    old, new = save(store, 3), save(store, 5, round=2)
    for path in files_of(store, new.directory):
        data = path.read_bytes()
        path.write_bytes((store.path / old.directory / path.name).read_bytes())
        with pytest.raises(CorruptCheckpoint):
            verify(store, next(iter(committed(store))))
        path.write_bytes(data)


def reseal(path: Path, change: Any) -> bytes:
    """Rewrites a document with a right sum, as somebody with a text editor and bad intentions could."""
    body = decode(path.read_bytes(), path.name)
    change(body)
    data = encode(body)
    path.write_bytes(data)
    return data


@pytest.mark.parametrize(
    "change",
    [
        lambda part: part["files"][0].update(name="../../../secret"),
        lambda part: part["files"][0].update(size=10**15),
        lambda part: part["mirrored"][0].update(shape=[2**30, 2**30], stop=2**60),
        lambda part: part["mirrored"][0].update(shape=[600, 513]),
        lambda part: part["mirrored"][0].update(tensor="other"),
        lambda part: part["mirrored"].append(part["mirrored"][0]),
        lambda part: part["mirrored"].pop(),
        lambda part: part.update(member=1),
        lambda part: part.update(position={}),
        lambda part: part.update(mirrored=[]),
    ],
)
def test_a_part_list_edited_on_purpose_leads_nowhere(store: LocalStore, change: Any) -> None:
    info = save(store, 3)
    folder = store.path / info.directory
    (store.path.parent / "secret").write_bytes(b"secret")
    data = reseal(folder / "w00000.part.json", change)

    def bind(manifest: dict[str, Any]) -> None:
        manifest["parts"][0].update(size=len(data), crc32c=google_crc32c.value(data))

    reseal(folder / MANIFEST, bind)
    (edited,) = committed(store)
    assert edited.error is None
    with pytest.raises(CorruptCheckpoint):
        load(store, edited, 0, 2)


@pytest.mark.parametrize("changes", [{"dtype": "float32"}, {"tensor": "other"}, {"shape": [1, 2]}])
def test_a_part_list_that_describes_other_tensors_than_its_files_hold_is_refused(
    store: LocalStore, changes: dict[str, Any]
) -> None:
    folder = store.path / save(store, 3).directory

    def describe(part: dict[str, Any]) -> None:
        (seed,) = (placed for placed in part["mirrored"] if placed["tensor"] == "seed")
        seed.update(changes)

    data = reseal(folder / "w00001.part.json", describe)

    def bind(manifest: dict[str, Any]) -> None:
        manifest["parts"][1].update(size=len(data), crc32c=google_crc32c.value(data))

    reseal(folder / MANIFEST, bind)
    with pytest.raises(CorruptCheckpoint, match=r"w00001\.mirrored.*part list"):
        load(store, committed(store)[0], 0, 2)


def test_a_valid_part_list_that_the_manifest_does_not_bind_is_refused(store: LocalStore) -> None:
    info = save(store, 3)
    path = store.path / info.directory / "w00000.part.json"
    size = path.stat().st_size

    for batch in range(4, 10):  # until the sums happen to have equally many digits
        reseal(path, lambda part, batch=batch: part["state"].update(batch=batch))
        if path.stat().st_size == size:
            break
    assert path.stat().st_size == size
    with pytest.raises(CorruptCheckpoint, match="another crc32c"):
        load(store, info, 0, 2)


def test_a_manifest_edited_in_a_text_editor_is_refused(store: LocalStore) -> None:
    info = save(store, 3)
    path = store.path / info.directory / MANIFEST
    for change in ({"reason": "none"}, {"finished": True}, {"created_at": 1}):
        original = path.read_bytes()
        path.write_text(json.dumps({**json.loads(original), **change}))
        refused(store, info.directory)
        path.write_bytes(original)
    assert committed(store) == [info]
