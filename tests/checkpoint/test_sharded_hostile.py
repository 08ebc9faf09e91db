"""Part lists and manifests with pieces of sharded tensors that somebody has changed: refused before a piece is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint.errors import CorruptCheckpoint
from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.layout import MANIFEST, part_file
from keras_preempt.checkpoint.reader import Reading, load, verify
from tests.checkpoint.fuzz_targets import Change, edit_part, fields_of, seal_document
from tests.checkpoint.sharded_builders import ALONE, Counting, attempt_of, held_by, save, sharded

STEP = 5


def other(body: dict[str, Any], **fields: Any) -> None:
    body["sharded"][0].update(fields)


def moved(body: dict[str, Any]) -> None:
    """The same number of elements, one column further."""
    placed = body["sharded"][0]
    other(body, start=[0, placed["start"][1] + 1], stop=[7, placed["stop"][1] + 1])


CHANGES: dict[str, tuple[Change, str]] = {
    "missing": (lambda body: body["sharded"].pop(0), "a gap"),
    "overlapping": (
        lambda body: body["sharded"].append({**body["sharded"][0], "stop": [1, 1]}),
        "an overlap at element [0, 0]",
    ),
    "repeated": (lambda body: body["sharded"].append(body["sharded"][0]), "smaller than the tensors"),
    "moved": (moved, "an overlap|a gap"),
    "larger": (lambda body: other(body, start=[0, 0], stop=[7, 12]), "smaller than the tensors"),
    "out of range": (lambda body: other(body, stop=[7, 13]), "Expected a piece"),
    "before the first": (lambda body: other(body, start=[-1, 0]), "an integer"),
    "backwards": (lambda body: other(body, start=[7, 3], stop=[0, 0]), "Expected a piece"),
    "of fewer dimensions": (lambda body: other(body, start=[0], stop=[84]), "Expected a piece"),
    "of another type": (lambda body: other(body, dtype="int32"), "different shapes or element types"),
    "of no type": (lambda body: other(body, dtype="object"), "element type"),
    "of another shape": (lambda body: other(body, shape=[7, 14]), "different shapes or element types"),
    "of terabytes": (lambda body: other(body, shape=[2**40, 2**40]), "2\\*\\*62"),
    "of another name": (lambda body: other(body, tensor="other"), "a gap"),
    "of a mirrored name": (
        lambda body: [placed.update(tensor="iterations") for placed in body["sharded"]],
        "a gap|both|different",
    ),
    "in another file": (lambda body: other(body, file="w00000.local.safetensors"), "local tensors"),
    "among mirrored ones": (lambda body: other(body, file="w00000.mirrored.safetensors"), "both pieces"),
    "in no file": (lambda body: other(body, file="../../x"), "not listed"),
    "with a field more": (lambda body: other(body, run="print()"), "no other fields"),
    "in the old format": (lambda body: body.update(format=1), "no other fields"),
    "without the field": (lambda body: body.pop("sharded"), "a field 'sharded'"),
}


@pytest.fixture
def hostile(store: Counting) -> Path:
    """The folder of a checkpoint of two workers, each with half of a matrix."""
    attempt = attempt_of(STEP, sharded(STEP, ALONE, 2), 2)
    save(store, attempt)
    return store.path / attempt.directory


def refusals(store: Counting, hostile: Path) -> list[str]:
    """What each way to read the newest checkpoint says."""
    (info,) = committed(store)
    specs = sharded(STEP, {"kernel": (1, 3)}, 3)
    said = []
    for read in (
        lambda: load(store, info, 0, 2),
        lambda: Reading(store, info, wanted=held_by(1, specs)).load(0),
        lambda: Reading(store, info).load_all(),
        lambda: verify(store, info),
    ):
        with pytest.raises(CorruptCheckpoint) as refused:
            read()
        said.append(str(refused.value))
    return said


@pytest.mark.parametrize("change", CHANGES)
def test_a_part_list_with_overlapping_missing_or_foreign_pieces_is_refused(
    change: str, hostile: Path, store: Counting
) -> None:
    make, why = CHANGES[change]
    edit_part(hostile, part_file(0), make)
    for said in refusals(store, hostile):
        assert any(word.replace("\\", "") in said for word in why.split("|")), said
    assert not any(".sharded" in name for name in store.opened), "refused before anything is read"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"holders": [0]}, "had to write none"),
        ({"holders": []}, "had to write none"),
        ({"holders": [1, 0]}, "not in order"),
        ({"holders": [0, 0, 1]}, "repeated"),
        ({"holders": [0, 1, 2]}, "without a part"),
        ({"format": 1}, "no other fields"),
    ],
)
def test_a_manifest_that_names_other_holders_is_refused(
    changes: dict[str, Any], why: str, hostile: Path, store: Counting
) -> None:
    path = hostile / MANIFEST
    path.write_bytes(seal_document({**fields_of(path), **changes}))
    (info,) = committed(store)
    with pytest.raises(CorruptCheckpoint, match=why):
        Reading(store, info).load_all()  # It raises the error of the manifest itself, too.


def test_a_changed_byte_of_a_piece_is_found_however_it_is_read(hostile: Path, store: Counting) -> None:
    path = hostile / "w00001.sharded.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert all(f"{path.name} to be what was written" in said for said in refusals(store, hostile))


def test_pieces_that_do_not_fit_the_model_are_refused_before_anything_is_read(
    hostile: Path, store: Counting
) -> None:
    (info,) = committed(store)
    (spec,) = sharded(STEP, ALONE, 2)
    for changed in (replace(spec, dtype="int32"), replace(spec, shape=(8, 12))):
        with pytest.raises(CorruptCheckpoint, match="as the model has it"):
            Reading(store, info, wanted=held_by(0, [changed])).load(0)


def test_an_attempt_without_a_holder_among_its_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="Number the processes"):
        attempt_of(STEP, sharded(STEP, ALONE, 2), 1, writers=(0,))
