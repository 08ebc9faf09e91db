"""What somebody may put into a directory in the place of our files: it is refused in one line, and nothing outside
the directory is read, written or removed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import CheckpointError, CorruptCheckpoint
from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.identity import check_or_create
from keras_preempt.checkpoint.layout import MANIFEST, RUN, part_file
from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.local import LocalStore
from tests.checkpoint.builders import retain, snapshot
from tests.checkpoint.fuzz_campaign import check_refusal
from tests.checkpoint.fuzz_targets import Targets, seal_document
from tests.checkpoint.hostile_start import IDENTITY, TENSORS, assert_passed_over, start

# -- Something else than a file -------------------------------------------------------------------------


Put = Callable[[Path], object]


def linked_to(target: str) -> Put:
    return lambda path: path.symlink_to(target.format(path.name))


def longer_circle(path: Path) -> None:
    path.symlink_to(f"{path.name}.2")
    path.with_name(f"{path.name}.2").symlink_to(path.name)


link_out, absolute_link = linked_to("../../../outside"), linked_to("/etc/passwd")
device, circle, dangling = linked_to("/dev/zero"), linked_to("{}"), linked_to("../../../not there")
LINKS = [link_out, absolute_link, device, circle, longer_circle, dangling]


@pytest.mark.parametrize("put", [*LINKS, os.mkfifo, Path.mkdir])
@pytest.mark.parametrize("name", [part_file(0), TENSORS])
def test_something_else_in_the_place_of_a_file_is_refused_at_once(
    name: str, put: Put, targets: Targets
) -> None:
    (targets.folder / name).unlink()
    put(targets.folder / name)
    assert name in assert_passed_over(targets)


@pytest.mark.parametrize("put", [*LINKS, os.mkfifo, Path.mkdir])
def test_a_manifest_that_is_no_file_is_no_checkpoint_and_a_link_elsewhere_is_named(
    put: Put, targets: Targets
) -> None:
    (targets.folder / MANIFEST).unlink()
    put(targets.folder / MANIFEST)
    if put in LINKS and put is not dangling:
        assert "symbolic link" in assert_passed_over(targets)
    else:
        assert start(targets).name == targets.old.directory
        listed = [targets.new.directory] if put is dangling else []
        assert [info.directory for info in committed(targets.store)] == [*listed, targets.old.directory]


@pytest.mark.parametrize("what", ["step", "attempt"])
@pytest.mark.parametrize("put", ["out", "circle"])
def test_a_folder_that_is_a_link_elsewhere_is_neither_read_nor_cleared_away(
    what: str, put: str, targets: Targets, tmp_path: Path
) -> None:
    """A whole checkpoint lies elsewhere; that one is not ours to restore, and not ours to remove."""
    linked = targets.folder.parent if what == "step" else targets.folder
    elsewhere = tmp_path / "elsewhere"
    linked.rename(elsewhere)
    linked.symlink_to(elsewhere if put == "out" else linked.name)
    before = snapshot(elsewhere)
    assert "symbolic link" in assert_passed_over(targets)
    assert retain(targets.store, Retention(1), 99) == []
    assert snapshot(elsewhere) == before


def test_a_link_to_an_older_checkpoint_is_not_taken_for_a_newer_one(targets: Targets) -> None:
    (targets.store.path / "step-00000009").symlink_to(targets.folder.parent.name)
    began = start(targets)
    assert began.name == targets.new.directory
    assert "the manifest of step 5" in began.skipped[0]


# -- Where a start writes -------------------------------------------------------------------------------


@pytest.mark.parametrize("put", [link_out, os.mkfifo, Path.mkdir, circle, device, dangling])
@pytest.mark.parametrize("name", [RUN, "a/b/events.jsonl"])
def test_a_run_or_events_file_that_is_no_file_is_refused_at_once(
    name: str, put: Put, targets: Targets
) -> None:
    path = targets.store.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    put(path)
    with pytest.raises(CheckpointError, match=r"Expected .* Received: ") as refused:
        start(targets) if name == RUN else targets.store.append_log(name)
    check_refusal(refused.value)
    assert targets.outside.read_bytes() == b"nobody may touch this"
    assert not (path.parent / "../../../not there").exists()


def test_a_claim_counts_only_under_the_name_that_a_start_gives_it_and_the_highest_is_refused_at_the_start(
    targets: Targets,
) -> None:
    for name in (
        "000000077.json",
        "0000000077.json",
        "77.json",
        "00077.json.bak",
        "-0077.json",
        "x00077.json",
        "notes.txt",
        "\N{ARABIC-INDIC DIGIT ZERO}0077.json",
    ):
        targets.store.create(f"incarnations/{name}", b"")
    assert incarnations.latest(targets.store) == 1
    # Not at the first save, when no attempt could be named any more.
    targets.store.create("incarnations/999999999.json", b"")
    with pytest.raises(CorruptCheckpoint, match=r"incarnations/999999999\.json .*highest"):
        start(targets)


# -- Names ----------------------------------------------------------------------------------------------


def test_names_that_are_no_text_neither_stop_a_start_nor_are_removed(targets: Targets) -> None:
    odd = [b"\xff\xfe", b"step-\xff", b"a\\b", b"line\nbreak", b"\x1b[2J"]
    for folder in (targets.store.path, targets.folder, targets.folder.parent):
        for name in map(os.fsdecode, odd):
            (folder / name).mkdir()
            (folder / name / name).write_bytes(b"mine")
    assert start(targets).name == targets.new.directory
    (targets.folder / MANIFEST).unlink()  # an abandoned attempt now
    assert retain(targets.store, Retention(1), 99) == [targets.new.directory]
    assert not (targets.folder / TENSORS).exists()
    for name in map(os.fsdecode, odd):
        assert (targets.folder / name / name).read_bytes() == b"mine"


def test_names_of_others_are_shown_on_one_line(store: LocalStore) -> None:
    for name in (b"\xff\xfe", b"line\nbreak", b"\x1b[2J"):
        (store.path / os.fsdecode(name)).mkdir()
    with pytest.raises(CheckpointError, match="empty directory") as refused:
        check_or_create(store, IDENTITY)
    check_refusal(refused.value)


MISSING = object()

# -- run.json -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": None},
        {"run_id": [1]},
        {"model": [{"name": [], "shape": [2], "dtype": "float32"}]},
        {"model": [{"name": "a", "shape": 7, "dtype": "float32"}]},
        {"model": {"name": "a"}},
        {"model": 10**300},
        {"optimizer": [1]},
        {"optimizer_class": "x\n" * 10_000},
        {"config": []},
        {"config": {"k" * 100_000: "v" * 100_000}},
        {"setup": {}},
        {"setup": {"workers": "2", "replicas": [], "global_batch": {}, "batches": 10**300, "built_from": 1}},
        {"setup": None},
        {"run_id": MISSING},
    ],
)
def test_a_hostile_identity_is_refused_and_nothing_is_changed(
    targets: Targets, changes: dict[str, Any]
) -> None:
    body = {name: value for name, value in {**IDENTITY, **changes}.items() if value is not MISSING}
    (targets.store.path / RUN).write_bytes(seal_document(body))
    before = snapshot(targets.store.path)
    with pytest.raises(CheckpointError, match=r"Expected .* Received: ") as refused:
        start(targets)
    assert len(str(refused.value)) < 5000
    assert "".join(str(refused.value).split("\n")).isprintable()
    assert snapshot(targets.store.path) == before
