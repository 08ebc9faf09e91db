from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_preempt.checkpoint.division import divide
from keras_preempt.checkpoint.documents import FORMAT, SHARDED_FORMAT, decode_document
from keras_preempt.checkpoint.errors import CorruptCheckpoint
from keras_preempt.checkpoint.layout import (
    attempt_directory,
    attempt_name,
    is_attempt_file,
    parse_attempt,
    parse_step,
    part_file,
    tensor_file,
)
from keras_preempt.checkpoint.manifest import FileEntry, Manifest, Part, PartRef, Placed
from keras_preempt.checkpoint.values import Box, Value

sums = st.integers(0, 2**32 - 1)
json_objects = st.dictionaries(st.text(), st.integers() | st.text() | st.floats(allow_nan=False), max_size=3)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    members = draw(st.integers(1, 9))
    present = sorted(draw(st.sets(st.integers(0, members - 1), min_size=1)))
    incarnation, round = draw(st.integers(0, 10**6)), draw(st.integers(0, 10**5))
    version = draw(st.sampled_from([FORMAT, SHARDED_FORMAT]))
    return Manifest(
        format=version,
        step=draw(st.integers(0, 10**12)),
        position=draw(json_objects),
        incarnation=incarnation,
        attempt=attempt_name(incarnation, round),
        kind=draw(st.text()),
        finished=draw(st.booleans()),
        reason=draw(st.text()),
        members=members,
        writers=tuple(sorted(draw(st.sets(st.sampled_from(present), min_size=1)))),
        parts=tuple(
            PartRef(member, part_file(member), draw(st.integers(0, 2**40)), draw(sums)) for member in present
        ),
        missing=tuple(member for member in range(members) if member not in present),
        created_at=draw(st.floats(0, 1e10)),
        versions=draw(json_objects),
        holders=tuple(sorted(draw(st.sets(st.sampled_from(present))))) if version == SHARDED_FORMAT else (),
    )


@st.composite
def parts(draw: st.DrawFn) -> Part:
    member = draw(st.integers(0, 9999))
    shapes = draw(st.lists(st.lists(st.integers(0, 500), max_size=2).map(tuple), max_size=5))
    share = divide([Value(f"t{number}", "float32", shape) for number, shape in enumerate(shapes)], (0, 1))[0]
    files = [tensor_file(member, "mirrored", index) for index in range(2)]
    placed = tuple(Placed(draw(st.sampled_from(files)), run) for run in share)
    own = tensor_file(member, "local") if draw(st.booleans()) else None
    boxes = tuple(
        Placed(tensor_file(member, "sharded"), Box(f"s{number}", "float32", shape, (0,) * len(shape), shape))
        for number, shape in enumerate(draw(st.lists(st.sampled_from([(), (3,), (2, 4)]), max_size=2)))
    )
    names = [*files, *([own] if own else []), *([tensor_file(member, "sharded")] if boxes else [])]
    entries = tuple(FileEntry(name, draw(st.integers(2**40, 2**50)), draw(sums)) for name in names)
    return Part(member, entries, placed + boxes, own, draw(json_objects), draw(json_objects))


@given(manifests() | parts())
def test_a_document_is_read_back_as_it_was_and_cannot_be_changed(made: Manifest | Part) -> None:
    assert type(made).from_document(decode_document(made.to_json(), "file", SHARDED_FORMAT), "file") == made
    with pytest.raises(FrozenInstanceError):
        made.position = {}  # type: ignore[misc]


A_MANIFEST = Manifest(
    format=FORMAT,
    step=3,
    position={"epoch": 0},
    incarnation=1,
    attempt="00001-0002",
    kind="preemption",
    finished=False,
    reason="SIGTERM",
    members=3,
    writers=(0,),
    parts=(PartRef(0, part_file(0), 10, 1), PartRef(1, part_file(1), 10, 1)),
    missing=(2,),
    created_at=1.5,
    versions={},
)
MIRRORED, LOCAL = "w00001.mirrored.safetensors", "w00001.local.safetensors"
A_PART = Part(
    member=1,
    files=(FileEntry(MIRRORED, 100, 1), FileEntry(LOCAL, 9, 1)),
    boxes=(Placed(MIRRORED, Value("a", "float32", (9,)).run(2, 9)),),
    local=LOCAL,
    state={},
    position={},
)


def changed(made: Manifest | Part, **changes: Any) -> Any:
    """What is read of a document in which somebody has changed fields."""
    return type(made).from_document({**decode_document(made.to_json(), "file"), **changes}, "file")


WRONG_TYPES: list[Any] = [None, True, -1, 1.5, "x", [], [[]], {}, 2**70]


@pytest.mark.parametrize("made", [A_MANIFEST, A_PART], ids=["manifest", "part list"])
def test_a_field_that_is_missing_unknown_or_of_another_type_is_refused(made: Manifest | Part) -> None:
    assert changed(made) == made
    fields = decode_document(made.to_json(), "file")
    for key, value in fields.items():
        others = {name: other for name, other in fields.items() if name != key}
        with pytest.raises(CorruptCheckpoint, match=f"a field '{key}'"):
            type(made).from_document(others, "file")
        for wrong in WRONG_TYPES:
            same_type = type(wrong) is type(value) or (key == "local" and wrong is None)
            if same_type or (key == "created_at" and isinstance(wrong, (int, float)) and wrong is not True):
                continue
            with pytest.raises(CorruptCheckpoint):
                changed(made, **{key: wrong})
    with pytest.raises(CorruptCheckpoint, match="expected no other fields, received 'later'"):
        changed(made, later=1)


@pytest.mark.parametrize(
    "changes",
    [
        {"attempt": "../../x"},
        {"attempt": "00002-0002"},
        {"members": 2},
        {"members": 10**9},
        {"members": 0},
        {"writers": []},
        {"writers": [2]},
        {"writers": [0, 0]},
        {"writers": [1, 0]},
        {"missing": []},
        {"missing": [1, 2]},
        {"missing": [2, 2]},
        {"parts": [{"member": 0, "name": "../../w00000.part.json", "size": 1, "crc32c": 1}]},
        {"parts": [{"member": 0, "name": "w00001.part.json", "size": 1, "crc32c": 1}]},
        {"parts": [{"member": 0, "name": "w00000.part.json", "size": -1, "crc32c": 1}]},
        {"parts": [{"member": 0, "name": "w00000.part.json", "size": 1, "crc32c": 2**32}]},
        {"step": -1},
        {"created_at": 10**400},
        {"reason": "x" * 10_001},
        {"position": {"epoch": "x" * 10_001}},
        {"versions": {str(number): number for number in range(1000)}},
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"Expected file .* Received: "):
        changed(A_MANIFEST, **changes)


def a_slice(**changes: Any) -> list[dict[str, Any]]:
    fields = {"file": MIRRORED, "tensor": "a", "dtype": "float32", "shape": [9], "start": 2, "stop": 9}
    return [{**fields, **changes}]


@pytest.mark.parametrize(
    "changes",
    [
        {"files": [{"name": name, "size": 100, "crc32c": 1}], "mirrored": [], "local": None}
        for name in ("../x", "/etc/passwd", "a/b", "", ".", "a\\b", ".tmp-1", "a\0")
    ]
    + [
        {"files": [{"name": "a", "size": 1, "crc32c": 1}] * 2, "mirrored": [], "local": None},
        {"files": []},
        {"local": "w00001.other.safetensors"},
        {"local": MIRRORED},
        {"mirrored": a_slice(file="w00002.mirrored.safetensors")},
        {"mirrored": a_slice(dtype="object")},
        {"mirrored": a_slice(start=10)},
        {"mirrored": a_slice(stop=10)},
        {"mirrored": a_slice(shape=[2**40], stop=2**40)},
        {"mirrored": a_slice(shape=[2**61, 2**61])},
        {"mirrored": a_slice() * 4},
        {"mirrored": a_slice(tensor="")},
        {"mirrored": a_slice(run="print()")},
    ],
)
def test_a_part_list_that_contradicts_itself_or_leads_elsewhere_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"Expected file .* Received: "):
        changed(A_PART, **changes)


@given(st.integers(0, 10**17), st.integers(0, 10**8), st.integers(0, 10**8))
def test_names_of_folders_are_read_back(step: int, incarnation: int, round: int) -> None:
    attempt = attempt_name(incarnation, round)
    folder, slash, rest = attempt_directory(step, attempt).partition("/")
    assert parse_step(folder) == step
    assert (slash, rest) == ("/", attempt)
    assert parse_attempt(attempt) == (incarnation, round)


def test_only_names_that_a_save_gives_are_recognised() -> None:
    for name in (
        "MANIFEST.json",
        part_file(3),
        tensor_file(3, "local"),
        tensor_file(3, "mirrored"),
        tensor_file(12345, "mirrored", 999),
        tensor_file(3, "sharded"),
        tensor_file(12345, "sharded", 999),
    ):
        assert is_attempt_file(name)
    for name in (
        "notes.txt",
        "w1.part.json",
        "w00001.part.json.bak",
        "w00001.weights.safetensors",
        "manifest.json",
    ):
        assert not is_attempt_file(name)
    for folder in ("step-1", "step-000000001", "step-0000000x", "steps-00000001", "step-00000001 "):
        assert parse_step(folder) is None
    for attempt in ("", "1-1", "00001-0001\n", "00001-0001/..", "-0001-0001"):
        with pytest.raises(ValueError, match="Expected an attempt"):
            attempt_directory(1, attempt)
    with pytest.raises(ValueError, match="Expected a step"):
        attempt_directory(-1, "00001-0001")
