from __future__ import annotations

import json
import random
from typing import Any

import pytest

from keras_preempt.checkpoint.errors import CheckpointError, CorruptCheckpoint
from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.layout import MANIFEST, part_file
from keras_preempt.checkpoint.reader import load, verify
from tests.checkpoint.builders import snapshot
from tests.checkpoint.fuzz_targets import MEMBERS, Change, Targets, edit_part, fields_of, seal_document


def assert_refused(targets: Targets, member: int) -> None:
    """Makes sure that a damaged checkpoint is not restored, but stays where it is."""
    info = committed(targets.store)[0]
    with pytest.raises(CheckpointError, match=r"Expected .* Received: "):
        verify(targets.store, info)
    with pytest.raises(CheckpointError, match=r"Expected .* Received: "):
        load(targets.store, info, member, MEMBERS)


@pytest.mark.parametrize("damage", ["flip", "cut", "grow"])
@pytest.mark.parametrize("samples", [5, pytest.param(200, marks=pytest.mark.chaos)])
def test_damage_anywhere_in_any_file_is_never_restored(targets: Targets, damage: str, samples: int) -> None:
    chosen = random.Random(damage)
    paths = sorted(targets.folder.iterdir())
    assert {path.name.split(".")[1].partition("-")[0] for path in paths} == {
        *("json", "local", "mirrored", "part", "sharded")
    }
    for path in paths:
        data = path.read_bytes()
        # The beginning, where headers are, the end, and samples of the rest.
        offsets = {0, 1, 7, 8, len(data) - 1, *(chosen.randrange(len(data)) for _ in range(samples))}
        for offset in sorted(offsets):
            if damage == "flip":
                bit = 1 << chosen.randrange(8)
                path.write_bytes(data[:offset] + bytes([data[offset] ^ bit]) + data[offset + 1 :])
            elif damage == "cut":
                path.write_bytes(data[:offset])
            else:
                path.write_bytes(data + bytes(offset + 1))
            # A worker reads all but the local tensors of the others.
            assert_refused(targets, 1 if path.name.startswith("w00001") else 0)
        path.write_bytes(data)
    verify(targets.store, committed(targets.store)[0])


def test_a_missing_file_and_one_of_another_checkpoint_are_never_overlooked(targets: Targets) -> None:
    old = targets.store.path / targets.old.directory
    for path in sorted(targets.folder.iterdir()):
        data = path.read_bytes()
        path.write_bytes((old / path.name).read_bytes())
        with pytest.raises(CorruptCheckpoint):
            verify(targets.store, committed(targets.store)[0])
        path.unlink()
        if path.name != MANIFEST:
            with pytest.raises(CorruptCheckpoint, match=path.name):
                verify(targets.store, targets.new)
        path.write_bytes(data)
    verify(targets.store, targets.new)


@pytest.mark.parametrize(
    "change",
    [
        lambda part: part["files"][0].update(name="../../../outside"),
        lambda part: part["files"][0].update(size=10**15),
        lambda part: part["mirrored"][0].update(shape=[2**30, 2**30], stop=2**60),
        lambda part: part["mirrored"][0].update(shape=[7, 13]),
        lambda part: part["mirrored"][0].update(tensor="other"),
        lambda part: part["mirrored"].append(part["mirrored"][0]),
        lambda part: part["mirrored"].pop(),
        lambda part: part.update(member=1),
        lambda part: part.update(position={}),
        lambda part: part.update(mirrored=[]),
    ],
)
def test_a_part_list_edited_on_purpose_leads_nowhere(targets: Targets, change: Change) -> None:
    edit_part(targets.folder, part_file(0), change)
    edited = committed(targets.store)[0]
    assert edited.error is None
    with pytest.raises(CorruptCheckpoint):
        load(targets.store, edited, 0, MEMBERS)


@pytest.mark.parametrize("changes", [{"dtype": "float64"}, {"tensor": "other"}, {"shape": [1]}])
def test_a_part_list_that_describes_other_tensors_than_its_files_hold_is_refused(
    targets: Targets, changes: dict[str, Any]
) -> None:
    def describe(part: dict[str, Any]) -> None:
        (placed,) = (placed for placed in part["mirrored"] if placed["tensor"] == "iterations")
        placed.update(changes)

    edit_part(targets.folder, part_file(1), describe)
    with pytest.raises(CorruptCheckpoint, match=r"w00001\.mirrored.*part list"):
        load(targets.store, committed(targets.store)[0], 0, MEMBERS)


def test_a_valid_part_list_that_the_manifest_does_not_bind_is_refused(targets: Targets) -> None:
    path = targets.folder / part_file(0)
    size, body = path.stat().st_size, fields_of(path)
    for best in range(10**15, 10**15 + 99):  # until the sums happen to have equally many digits
        path.write_bytes(seal_document({**body, "state": {**body["state"], "best": best}}))
        if path.stat().st_size == size:
            break
    assert path.stat().st_size == size
    with pytest.raises(CorruptCheckpoint, match="another crc32c"):
        load(targets.store, targets.new, 0, MEMBERS)


def test_a_manifest_edited_in_a_text_editor_is_refused(targets: Targets) -> None:
    path = targets.folder / MANIFEST
    original = path.read_bytes()
    for change in ({"reason": "none"}, {"finished": True}, {"created_at": 1}):
        path.write_text(json.dumps({**json.loads(original), **change}, separators=(",", ":")) + "\n")
        before = snapshot(targets.store.path)
        assert_refused(targets, 0)
        assert "changed after it was written" in str(committed(targets.store)[0].error)
        assert snapshot(targets.store.path) == before
        path.write_bytes(original)
    assert committed(targets.store) == [targets.new, targets.old]
