"""What somebody may put into a directory in the place of our files: it is refused in one line, and nothing outside
the directory is read, written or removed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import CheckpointError, CorruptCheckpoint, UnsafeName
from keras_preempt.checkpoint.identity import check_or_create
from keras_preempt.checkpoint.layout import MANIFEST, RUN, part_file
from keras_preempt.checkpoint.reader import committed
from keras_preempt.checkpoint.retention import Retention, retain
from keras_preempt.checkpoint.storage.local import LocalStore
from tests.checkpoint.builders import snapshot
from tests.checkpoint.fuzz_campaign import check_refusal
from tests.checkpoint.fuzz_targets import (
    Targets,
    fields_of,
    seal_document,
)
from tests.checkpoint.hostile_start import IDENTITY, TENSORS, assert_passed_over, start

# -- Something else than a file -------------------------------------------------------------------------


def link_out(path: Path) -> None:
    path.symlink_to("../../../outside")


def absolute_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def circle(path: Path) -> None:
    path.symlink_to(path.name)


def longer_circle(path: Path) -> None:
    path.symlink_to(f"{path.name}.2")
    path.with_name(f"{path.name}.2").symlink_to(path.name)


def dangling(path: Path) -> None:
    path.symlink_to("../../../not there")


@pytest.mark.parametrize(
    "put", [link_out, absolute_link, device, circle, longer_circle, dangling, os.mkfifo, Path.mkdir]
)
@pytest.mark.parametrize("name", [part_file(0), TENSORS])
def test_something_else_in_the_place_of_a_file_is_refused_at_once(
    name: str, put: Callable[[Path], None], targets: Targets
) -> None:
    (targets.folder / name).unlink()
    put(targets.folder / name)
    why = assert_passed_over(targets)
    assert name in why


@pytest.mark.parametrize("put", [link_out, absolute_link, device, circle, longer_circle, dangling])
def test_a_manifest_that_is_a_link_elsewhere_is_refused(
    put: Callable[[Path], None], targets: Targets
) -> None:
    (targets.folder / MANIFEST).unlink()
    put(targets.folder / MANIFEST)
    if put is not dangling:
        assert "symbolic link" in assert_passed_over(targets)
    else:
        assert targets.old.directory == start(targets).name


@pytest.mark.parametrize("put", [os.mkfifo, Path.mkdir])
def test_a_manifest_that_is_no_file_is_no_checkpoint(put: Callable[[Path], None], targets: Targets) -> None:
    (targets.folder / MANIFEST).unlink()
    put(targets.folder / MANIFEST)
    assert [info.directory for info in committed(targets.store)] == [targets.old.directory]
    assert start(targets).name == targets.old.directory


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
    newest = targets.store.path / "step-00000009"
    newest.symlink_to(targets.folder.parent.name)
    began = start(targets)
    assert began.name == targets.new.directory
    assert "the manifest of step 5" in began.skipped[0]


# -- Where a start writes -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["incarnations", "events"])
def test_nothing_is_written_through_a_link_that_leads_out(
    name: str, targets: Targets, tmp_path: Path
) -> None:
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    path = targets.store.path / name
    if path.exists():
        path.rename(tmp_path / "moved away")
    path.symlink_to(outside)
    with pytest.raises(UnsafeName, match=r"Expected .* Received: a symbolic link that leads to"):
        incarnations.claim(targets.store, {}) if name == "incarnations" else targets.store.append_log(
            "events/1.jsonl"
        )
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("put", [link_out, os.mkfifo, Path.mkdir, circle, device])
def test_an_events_file_that_is_no_file_is_refused_at_once(
    put: Callable[[Path], None], targets: Targets
) -> None:
    path = targets.store.path / "a" / "b" / "events.jsonl"
    path.parent.mkdir(parents=True)
    put(path)
    with pytest.raises(CheckpointError, match=r"Expected .* Received: ") as refused:
        targets.store.append_log("a/b/events.jsonl")
    check_refusal(refused.value)
    assert targets.outside.read_bytes() == b"nobody may touch this"


@pytest.mark.parametrize("put", [link_out, os.mkfifo, Path.mkdir, circle, device, dangling])
def test_a_run_file_that_is_no_file_is_refused(put: Callable[[Path], None], targets: Targets) -> None:
    path = targets.store.path / RUN
    path.unlink()
    put(path)
    with pytest.raises(CheckpointError, match=r"Expected .* Received: ") as refused:
        start(targets)
    check_refusal(refused.value)
    assert not (targets.store.path.parent / "not there").exists()


def test_the_highest_incarnation_that_a_name_can_hold_is_refused_at_the_start(targets: Targets) -> None:
    """Not at the first save, when no attempt could be named any more."""
    targets.store.create("incarnations/999999999.json", b"")
    with pytest.raises(CorruptCheckpoint, match=r"incarnations/999999999\.json .*highest"):
        start(targets)


def test_a_claim_counts_only_under_the_name_that_a_start_gives_it(targets: Targets) -> None:
    for name in (
        "000000077.json",
        "0000000077.json",
        "77.json",
        "00077.json.bak",
        "-0077.json",
        "\N{ARABIC-INDIC DIGIT ZERO}0077.json",
    ):
        targets.store.create(f"incarnations/{name}", b"")
    assert incarnations.latest(targets.store) == 1


# -- Names ----------------------------------------------------------------------------------------------


def test_names_that_are_no_text_neither_stop_a_start_nor_are_removed(targets: Targets) -> None:
    odd = [b"\xff\xfe", b"step-\xff", b"a\\b", b"line\nbreak", b"\x1b[2J"]
    for folder in (targets.store.path, targets.folder, targets.folder.parent):
        for name in odd:
            os.mkdir(os.path.join(os.fsencode(folder), name))
            with open(os.path.join(os.fsencode(folder), name, name), "wb") as file:
                file.write(b"mine")
    assert start(targets).name == targets.new.directory
    (targets.folder / MANIFEST).unlink()  # an abandoned attempt now
    assert retain(targets.store, Retention(1), 99) == [targets.new.directory]
    assert not (targets.folder / TENSORS).exists()
    for name in odd:
        with open(os.path.join(os.fsencode(targets.folder), name, name), "rb") as file:
            assert file.read() == b"mine"


def test_names_of_others_are_shown_on_one_line(store: LocalStore) -> None:
    for name in (b"\xff\xfe", b"line\nbreak", b"\x1b[2J"):
        os.mkdir(os.path.join(os.fsencode(store.path), name))
    with pytest.raises(CheckpointError, match="empty directory") as refused:
        check_or_create(store, IDENTITY)
    check_refusal(refused.value)


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
    ],
)
def test_a_hostile_identity_is_refused_and_nothing_is_changed(
    targets: Targets, changes: dict[str, Any]
) -> None:
    (targets.store.path / RUN).write_bytes(seal_document({**IDENTITY, **changes}))
    before = snapshot(targets.store.path)
    with pytest.raises(CheckpointError, match=r"Expected .* Received: ") as refused:
        start(targets)
    assert len(str(refused.value)) < 5000
    assert "".join(str(refused.value).split("\n")).isprintable()
    assert snapshot(targets.store.path) == before


def test_a_missing_run_id_is_refused(targets: Targets) -> None:
    body = fields_of(targets.store.path / RUN)
    del body["run_id"]
    (targets.store.path / RUN).write_bytes(seal_document(body))
    with pytest.raises(CorruptCheckpoint, match=r"run\.json"):
        start(targets)
