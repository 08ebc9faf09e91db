"""Tensors that are divided among workers: written in pieces, restored by other workers with the same values."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from safetensors import safe_open

from keras_preempt.checkpoint import assembly, incarnations, reader, writer
from keras_preempt.checkpoint.commit import Patience, commit
from keras_preempt.checkpoint.division import PiecesLost
from keras_preempt.checkpoint.errors import CommitFailed, NotEnoughMemory, PartsMissing
from keras_preempt.checkpoint.finding import CheckpointInfo, committed
from keras_preempt.checkpoint.layout import MANIFEST, is_attempt_file, part_file
from keras_preempt.checkpoint.reader import Loaded, Reading, load, verify
from keras_preempt.checkpoint.tensors import empty
from keras_preempt.checkpoint.values import Piece, Value
from keras_preempt.checkpoint.writer import WorkerShare, discard, write_part
from tests.checkpoint.builders import little_memory_taken
from tests.checkpoint.fuzz_targets import fields_of
from tests.checkpoint.round_table import RoundTable
from tests.checkpoint.sharded_builders import (
    ALONE,
    BOTH_WAYS,
    BY_COLUMNS,
    BY_ROWS,
    MIRRORED,
    Counting,
    Cuts,
    attempt_of,
    held_by,
    save,
    sharded,
    tensors,
    write,
)
from tests.checkpoint.test_exchange import restore

STEP = 5


def saved(store: Counting, cuts: Cuts, members: int, copies: int = 1, **changed: Any) -> CheckpointInfo:
    save(store, attempt_of(STEP, sharded(STEP, cuts, members, copies), members, **changed))
    return committed(store)[0]


def assert_holds(loaded: Loaded, specs: list[Value], member: int) -> None:
    """What a worker has got is what it needs, and every value is that which was saved."""
    wanted, values = held_by(member, specs), tensors(STEP)
    assert {name: set(boxes) for name, boxes in loaded.values.boxes.items()} == {
        name: set(boxes) for name, boxes in wanted.items()
    }
    for boxes in loaded.values.boxes.values():
        for box, array in boxes.items():
            expected = box.of(values[box.tensor])
            assert (array.dtype, array.shape) == (expected.dtype, expected.shape), box.key
            assert array.tobytes() == expected.tobytes(), box.key
    assert loaded.values.whole.keys() == values.keys() - wanted.keys()
    for name, array in loaded.values.whole.items():
        assert (array.dtype, array.shape) == (values[name].dtype, values[name].shape)
        assert array.tobytes() == values[name].tobytes(), name


LAYOUTS: dict[str, tuple[Cuts, int, int]] = {
    "columns on 2": (BY_COLUMNS, 2, 1),
    "rows on 3, each twice": (BY_ROWS, 3, 2),
    "both on 4": (BOTH_WAYS, 4, 1),
    "both on 1": (BOTH_WAYS, 1, 1),
    "mirrored on 2": (MIRRORED, 2, 1),
}
NEXT = dict(zip(LAYOUTS, [*list(LAYOUTS)[1:], next(iter(LAYOUTS))], strict=True))
"""Each is written once and read once; `make chaos` restores each in every other."""


@pytest.mark.parametrize(
    ("written", "read"),
    [
        pytest.param(one, other, marks=[] if NEXT[one] == other else pytest.mark.chaos)
        for one in LAYOUTS
        for other in LAYOUTS
    ],
)
def test_a_checkpoint_of_n_workers_restores_on_m_in_another_mesh_with_equal_values(
    written: str, read: str, store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cuts, members, copies), (others, readers, their_copies) = LAYOUTS[written], LAYOUTS[read]
    monkeypatch.setattr(writer, "FILE_SIZE", 40)  # Many files, and boxes of several in one.
    info = saved(store, cuts, members, copies)
    specs = sharded(STEP, others, readers, their_copies)
    for member in range(readers):
        loaded = Reading(store, info, wanted=held_by(member, specs)).load(member)
        assert_holds(loaded, specs, member)
        assert loaded.state["member"] == (member if member < members else 0)
    whole, workers = Reading(store, info).load_all()
    assert_holds(Loaded(loaded.manifest, whole, {}, None), [], 0)
    assert [own.member for own in workers] == list(range(members))
    verify(store, info)


@pytest.mark.parametrize("cuts", [BOTH_WAYS, MIRRORED], ids=["pieces", "slices"])
def test_workers_that_read_together_each_read_the_pieces_that_they_need(cuts: Cuts, store: Counting) -> None:
    saved(store, cuts, 2)
    specs = sharded(STEP, BY_COLUMNS, 3)
    for member, loaded in enumerate(restore(store, RoundTable(3), 3, specs=specs)):
        assert isinstance(loaded, Loaded), loaded
        assert_holds(loaded, specs, member)
    assert all(count == 1 for name, count in store.opened.items() if ".mirrored" in name)


def test_only_files_that_hold_something_of_a_needed_box_are_read(store: Counting) -> None:
    info = saved(store, {"kernel": (1, 4)}, 4)
    specs = sharded(STEP, {"kernel": (1, 4)}, 4)
    for member in range(4):
        store.opened.clear()
        Reading(store, info, wanted=held_by(member, specs)).load(0)
        assert [name for name in store.opened if ".sharded" in name] == [f"w{member:05d}.sharded.safetensors"]
    store.opened.clear()
    halves = sharded(STEP, {"kernel": (1, 2)}, 2)
    Reading(store, info, wanted=held_by(1, halves)).load(0)
    assert {name for name in store.opened if ".sharded" in name} == {
        "w00002.sharded.safetensors",
        "w00003.sharded.safetensors",
    }


def test_memory_is_asked_for_what_this_worker_needs_and_not_for_the_whole_tensor(
    store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_room = mock.Mock(side_effect=NotEnoughMemory("run", 2, 1))
    monkeypatch.setattr(reader, "check_room", check_room)
    monkeypatch.setattr(writer, "FILE_SIZE", 1)
    info = saved(store, {"kernel": (7, 2)}, 14, writers=(0,))
    for wanted in (held_by(3, sharded(STEP, {"kernel": (7, 2)}, 14)), None):
        with pytest.raises(NotEnoughMemory):
            Reading(store, info, wanted=wanted).load(0)
    (_, own), (_, whole) = (call.args for call in check_room.call_args_list)
    assert own + tensors(STEP)["kernel"].nbytes * 13 // 14 <= whole
    assert not any(name.endswith(".safetensors") for name in store.opened)


def test_pieces_that_lie_in_one_run_of_bytes_are_read_to_their_place_and_nothing_is_kept_twice(
    store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = mock.Mock(wraps=empty)
    monkeypatch.setattr(assembly, "empty", taken)
    info = saved(store, {"kernel": (7, 1)}, 2)
    load(store, info, 0, 2)
    Reading(store, info, wanted=held_by(1, sharded(STEP, {"kernel": (7, 1)}, 2))).load(0)
    sizes = [np.prod(call.args[1]) for call in taken.call_args_list if len(call.args[1]) == 2]
    assert sizes == [7 * 12, 12, 12, 12]


def test_what_was_read_beside_its_place_is_let_go_with_its_file(store: Counting) -> None:
    members, size = 16, 1 << 20
    shape = (256, members * size // 256)
    pieces = [
        Piece((0, n * shape[1] // members), (256, (n + 1) * shape[1] // members), (n,))
        for n in range(members)
    ]
    value = Value("kernel", "uint8", shape, tuple(pieces))
    attempt = attempt_of(STEP, [], members, values=[value])
    kernel = np.random.default_rng(STEP).integers(0, 255, shape, np.uint8)
    incarnations.claim(store, {})
    for member in range(members):
        (box,) = attempt.boxes[member]
        write_part(
            store, attempt.directory, member, WorkerShare([(box, box.of(kernel))], {}, {}, attempt.position)
        )
    commit(store, attempt, Patience(5.0))
    reading = Reading(store, committed(store)[0])
    with little_memory_taken((members + assembly.TRANSFERS + 1) * size):
        read = reading.load(0).values.whole["kernel"]
    assert np.array_equal(read, kernel)


def test_pieces_are_written_before_everything_else_and_none_is_cut(
    store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FILE_SIZE", 100)
    attempt = attempt_of(STEP, sharded(STEP, BOTH_WAYS, 1), 1)
    write(store, attempt)
    kinds = [name.split(".")[1].partition("-")[0] for name in store.written if "part" not in name]
    assert kinds == sorted(kinds, key=["sharded", "mirrored", "local"].index)
    assert kinds.count("sharded") > 2
    part = fields_of(store.path / attempt.directory / part_file(0))
    for entry in part["files"]:
        held = [placed for placed in part["sharded"] if placed["file"] == entry["name"]]
        assert len(held) <= 1 or sum(_bytes(placed) for placed in held) <= 100
    names = {path.name for path in (store.path / attempt.directory).iterdir()}
    assert all(map(is_attempt_file, names))
    assert discard(store, attempt.directory, 0)
    assert not (store.path / attempt.directory).exists()


def _bytes(placed: dict[str, Any]) -> int:
    extent = np.subtract(placed["stop"], placed["start"])
    return int(np.prod(extent)) * np.dtype(placed["dtype"]).itemsize


def test_a_file_of_pieces_is_a_safetensors_file_with_a_key_for_each(store: Counting) -> None:
    attempt = attempt_of(STEP, sharded(STEP, BY_COLUMNS, 2), 2)
    save(store, attempt)
    with safe_open(store.path / attempt.directory / "w00001.sharded.safetensors", framework="np") as file:
        assert set(file.keys()) == {box.key for box in attempt.boxes[1] if not box.flat}
        assert np.array_equal(file.get_tensor("kernel[0:7,3:6]"), tensors(STEP)["kernel"][:, 3:6])


def formats(folder: Path) -> dict[str, int]:
    return {path.name: json.loads(path.read_bytes())["format"] for path in folder.glob("*.json")}


def test_only_what_names_pieces_is_in_the_new_format(store: Counting) -> None:
    """Earlier releases go on reading checkpoints without any."""
    attempt = attempt_of(STEP, sharded(STEP, MIRRORED, 2), 2)
    save(store, attempt)
    assert formats(store.path / attempt.directory) == {MANIFEST: 1, part_file(0): 1, part_file(1): 1}
    for name in (MANIFEST, part_file(0)):
        assert not {"holders", "sharded"} & fields_of(store.path / attempt.directory / name).keys()
    attempt = attempt_of(STEP + 1, sharded(STEP + 1, {"kernel": (1, 1)}, 2), 2)
    manifest = save(store, attempt)
    assert manifest.holders == (0,)
    assert formats(store.path / attempt.directory) == {MANIFEST: 2, part_file(0): 2, part_file(1): 1}


# -- Workers that are under notice, or gone --------------------------------------------------------------


def test_a_worker_under_notice_that_alone_holds_a_piece_writes_it_and_is_waited_for(store: Counting) -> None:
    attempt = attempt_of(STEP, sharded(STEP, ALONE, 2), 2, writers=(0,), doomed=(1,))
    assert attempt.required == {0, 1}
    assert [box.start for box in attempt.boxes[1] if not box.flat] == [(0, 6)]
    late = threading.Thread(target=lambda: write(store, attempt, absent=(0,)))

    def wait(seconds: float) -> None:
        if not late.ident:
            late.start()
        late.join(30)

    manifest = save(store, attempt, absent=(1,), required=60.0, wait=wait)
    assert (manifest.writers, manifest.holders, manifest.missing) == ((0,), (0, 1), ())
    assert_holds(load(store, committed(store)[0], 0, 1), [], 0)


def test_pieces_that_others_hold_as_well_are_not_left_to_a_worker_under_notice(store: Counting) -> None:
    attempt = attempt_of(STEP, sharded(STEP, ALONE, 2, copies=2), 2, writers=(0,), doomed=(1,))
    assert attempt.holders == (0,)
    manifest = save(store, attempt, absent=(1,), gone=lambda: (1,))
    assert manifest.missing == (1,)
    assert_holds(load(store, committed(store)[0], 0, 1), [], 0)


@pytest.mark.parametrize("doomed", [(), (1,)], ids=["healthy", "under notice"])
def test_without_a_worker_that_alone_held_a_piece_nothing_is_committed_and_the_one_before_counts(
    doomed: tuple[int, ...], store: Counting
) -> None:
    saved(store, ALONE, 2)
    later = sharded(STEP + 1, ALONE, 2)
    attempt = attempt_of(STEP + 1, later, 2, writers=tuple({0, 1}.difference(doomed)), doomed=doomed)
    with pytest.raises(PartsMissing, match=r"Part of the model was held only by worker 1") as failed:
        save(store, attempt, absent=(1,), gone=lambda: (1,))
    assert failed.value.late == (1,)
    assert "Nothing was committed; the newest earlier checkpoint stays valid" in str(failed.value)
    (info,) = committed(store)
    assert info.step == STEP
    assert_holds(load(store, info, 0, 1), [], 0)
    with pytest.raises(PiecesLost, match=r"only worker 1 held"):
        attempt_of(STEP + 1, later, 2, writers=(0,), doomed=(1,), lost=frozenset({1}))


def test_parts_of_another_plan_are_not_committed(store: Counting) -> None:
    specs = sharded(STEP, ALONE, 2, copies=2)
    incarnations.claim(store, {})
    write(store, attempt_of(STEP, specs, 2))
    attempt = attempt_of(STEP, specs, 2, writers=(0,), doomed=(1,))
    why = "of worker 0 in .* the pieces of sharded tensors that are its to write"
    with pytest.raises(CommitFailed, match=why):
        commit(store, attempt, Patience(0.0))
    assert committed(store) == []


def test_a_worker_that_holds_nothing_alone_is_not_blamed(store: Counting) -> None:
    specs = sharded(STEP, ALONE, 2, copies=2)
    with pytest.raises(PartsMissing, match="Check that all workers share the directory"):
        save(store, attempt_of(STEP, specs, 2), absent=(1,), gone=lambda: (1,))
    save(store, attempt_of(STEP + 1, specs, 2, writers=(0,), doomed=(1,), lost=frozenset({1})), absent=(1,))
    assert committed(store)[0].step == STEP + 1
