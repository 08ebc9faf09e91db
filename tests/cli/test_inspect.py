"""``keras-preempt inspect`` shows what a directory holds, changes nothing, and says clearly what it cannot read."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint import documents, reader
from keras_preempt.checkpoint.layout import RUN
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.cli import checkpoint_summary
from keras_preempt.testing import FakeGcs
from tests.checkpoint import sharded_builders
from tests.checkpoint.builders import new_store
from tests.checkpoint.fuzz_targets import list_file
from tests.cli.saved_run import IDENTITY, Run, begin, contents, events, flip_a_bit, save


def newer(path: Path, **changed: Any) -> None:
    """Replaces a document by one of a newer format."""
    path.write_bytes(
        documents.encode_document({**documents.decode_document(path.read_bytes(), ""), **changed})
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two starts: a periodic save; then one after a notice, by one writer, and an attempt that came to nothing."""
    path = tmp_path_factory.mktemp("saved") / "run"
    store = begin(path)
    save(store, 6)
    save(store, 7, round=1, committed=False)
    begin(path)
    position = {"epoch": 1, "phase": "validation", "batch": 3, "step": 9}
    save(store, 9, writers=(1,), kind="preempted", position=position)
    notice = {"event": "notice", "time": time.time() - 5, "member": 0, "reason": "SIGTERM"}
    withdrawn = {**notice, "reason": "maintenance"}
    events(path, 2, 0, withdrawn, {**withdrawn, "event": "withdrawn"}, notice)
    return path


def test_shows_every_checkpoint_and_why_it_was_made(directory: Path, run: Run) -> None:
    out, err = run("inspect", directory)
    assert err == ""
    lines = [line.split() for line in out.splitlines()]
    assert ["9", "1", "val", "3"] in [line[:4] for line in lines]
    (newest,) = (line for line in lines if line[:1] == ["9"])
    assert newest[-3:] == ["1/2", "preempted", "-"]
    (older,) = (line for line in lines if line[:1] == ["6"])
    assert older[:3] == ["6", "1", "0"]
    assert older[-3:] == ["2/2", "periodic", "-"]
    assert lines.index(newest) < lines.index(older)
    assert "step 9: SIGTERM on worker 0\n" in out
    assert "maintenance" not in out, "it was withdrawn before"
    (attempt,) = (line for line in lines if line[:1] == ["step-00000007/00001-0001"])
    assert attempt[-1] == "abandoned"
    assert "run c0ffee (format 1)" in out
    assert "started 2 times" in out
    assert "15 parameters" in out


def test_fits_into_a_terminal_of_80_columns(
    directory: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "80")
    out, _ = run("inspect", str(directory))
    assert "\x1b[" in out
    rows = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", out).splitlines()]
    (row,) = (row for row in rows if row[:4] == ["9", "1", "val", "3"])
    assert row[-3:] == ["1/2", "preempted", "-"], "no cell is wrapped"


def test_json_has_all_of_it(directory: Path, run: Run) -> None:
    out, _ = run("inspect", directory, "--json", "--verify")
    told = json.loads(out)
    newest, older = told["checkpoints"]
    assert (newest["step"], newest["epoch"], newest["phase"], newest["batch"]) == (9, 1, "validation", 3)
    assert (newest["writers"], newest["workers"], newest["kind"]) == ([1], 2, "preempted")
    assert newest["notices"] == ["SIGTERM on worker 0"]
    assert abs(newest["saved_at"] - time.time()) < 600
    assert newest["saved_at_utc"].endswith("Z")
    files = list((directory / newest["directory"]).iterdir())
    assert newest["size"] == sum(path.stat().st_size for path in files)
    assert newest["files"] == len(files)
    assert newest["verified"] is older["verified"] is True
    assert told["left_over"][0]["directory"] == "step-00000007/00001-0001"
    assert told["left_over"][0]["abandoned"] is True
    assert told["run"]["run_id"] == "c0ffee"
    assert told["run"]["starts"] == 2


def test_attempts_of_the_present_start_may_still_be_committed(directory: Path, run: Run) -> None:
    save(LocalStore(directory), 10, committed=False)
    out, _ = run("inspect", str(directory), "--json")
    assert [attempt["abandoned"] for attempt in json.loads(out)["left_over"]] == [False, True]


def test_only_verify_finds_a_flipped_bit_in_a_tensor(directory: Path, run: Run) -> None:
    folder = directory / "step-00000009" / "00002-0000"
    flip_a_bit(folder / "w00001.mirrored.safetensors")
    out, _ = run("inspect", directory)
    assert "--verify reads every byte" in out
    out, _ = run("inspect", directory, "--verify", code=1)
    rows = [line.split() for line in out.splitlines()]
    assert [row[-1] for row in rows if row[:1] in (["9"], ["6"])] == ["NO", "yes"]
    assert "Expected step-00000009/00002-0000/w00001.mirrored.safetensors to be what was written" in out


def of_other_tensors(data: bytes) -> bytes:
    """A file of one tensor, whatever was in it."""
    header = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    return len(header).to_bytes(8, "little") + header + b"a"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: data[:9] + b"x" + data[10:], "no readable header"),
        (lambda data: b"\xff" * 3 + data[3:], "a header of"),
        (lambda data: data + b"12", "tensors of"),
        (of_other_tensors, "other tensors than its part list names"),
    ],
)
def test_verify_finds_a_file_that_cannot_be_restored_although_its_sums_are_right(
    change: Callable[[bytes], bytes], why: str, directory: Path, run: Run
) -> None:
    name = "w00001.mirrored.safetensors"
    folder = directory / "step-00000009" / "00002-0000"
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    list_file(folder, name)
    out, _ = run("inspect", directory, "--verify", code=1)
    rows = [line.split() for line in out.splitlines()]
    assert [row[-1] for row in rows if row[:1] in (["9"], ["6"])] == ["NO", "yes"]
    assert why in out


@pytest.mark.parametrize("gone", ["w00000.part.json", "MANIFEST.json"])
def test_a_damaged_checkpoint_is_reported_and_the_others_are_shown(
    directory: Path, gone: str, run: Run
) -> None:
    path = directory / "step-00000009" / "00002-0000" / gone
    if gone == "MANIFEST.json":
        flip_a_bit(path)
    else:
        path.unlink()
    out, _ = run("inspect", directory, code=1)
    assert f"step-00000009/00002-0000/{gone}" in out
    assert any(line.split()[:1] == ["6"] for line in out.splitlines())


WRITING = ("prepare", "create", "writer", "delete", "delete_tree", "append_log")


@pytest.mark.parametrize("options", [[], ["--verify"], ["--json"], ["--compare", "6", "newest"]])
def test_nothing_is_written(
    directory: Path, options: list[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(directory)
    for name in WRITING:
        monkeypatch.setattr(LocalStore, name, None)
    _, err = run("inspect", directory, *options, code=int("--compare" in options))
    assert not err.startswith("Error")
    assert contents(directory) == before


@pytest.mark.parametrize(
    ("where", "name", "removed", "left"),
    [
        (checkpoint_summary, "committed", "step-00000006", 9),
        (reader, "verify_file", "step-00000009/00002-0000", 6),
    ],
    ids=["after it was listed", "while it is verified"],
)
def test_a_checkpoint_that_a_running_job_removes_meanwhile_is_no_error(
    where: Any, name: str, removed: str, left: int, directory: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(where, name)

    def remove(*arguments: Any) -> Any:
        if where is reader:
            LocalStore(directory).delete_tree(removed)
        found = real(*arguments)
        LocalStore(directory).delete_tree(removed)
        return found

    monkeypatch.setattr(where, name, remove)
    out, _ = run("inspect", directory, "--verify", "--json")
    assert [checkpoint["step"] for checkpoint in json.loads(out)["checkpoints"]] == [left]


def test_compare_shows_every_tensor_or_names_the_steps_that_there_are(directory: Path, run: Run) -> None:
    out, _ = run("inspect", directory, "--compare", "6", "9", code=1)
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "12 of 12 values" in rows["model/net/dense/kernel"]
    assert rows["optimizer/adam/iteration"].endswith(" 3")
    words = [line for line in out.splitlines() if "model/net/words@0" in line]
    assert len(words) == 2
    assert all("identical" in line for line in words)
    assert "different: 8 of 10 tensors, 2 places of other state" in out
    assert "undisturbed" not in out
    _, err = run("inspect", directory, "--compare", "6", "8", code=3)
    assert "Expected a checkpoint of step 8" in err
    assert "those of steps 9, 6. Pass one of them." in err


def test_compare_with_another_run_and_with_itself(directory: Path, tmp_path: Path, run: Run) -> None:
    save(begin(tmp_path / "other"), 9)
    where = str(directory)
    out, _ = run("inspect", where, "--compare", "newest", tmp_path / "other")
    assert "identical: 10 tensors" in out
    out, _ = run("inspect", where, "--compare", "6", f"{tmp_path / 'other'}@9", "--json", code=1)
    told = json.loads(out)
    assert told["identical"] is False
    (tensor,) = (tensor for tensor in told["tensors"] if tensor["name"] == "optimizer/adam/iteration")
    assert (tensor["largest"], tensor["shape"]) == (3.0, "int64[]")


def test_works_on_a_bucket_with_the_permission_to_read(run: Run, in_bucket: str, bucket: FakeGcs) -> None:
    out, _ = run("inspect", in_bucket, "--verify", "--json")
    (checkpoint,) = json.loads(out)["checkpoints"]
    assert (checkpoint["step"], checkpoint["verified"]) == (6, True)
    _, err = run("inspect", "gs://bucket/runs", code=3)
    assert "which holds runs: gs://bucket/runs/1. Pass one of them." in err
    _, err = run("inspect", "gs://bucket/elsewhere", code=3)
    assert "gs://bucket/elsewhere, which is empty" in err
    bucket.deny.update(("get", "list"))
    assert "Received: 403" in run("inspect", in_bucket, code=3)[1]


def test_a_newer_format_of_one_checkpoint_is_reported_beside_the_others(directory: Path, run: Run) -> None:
    newer(directory / "step-00000009" / "00002-0000" / "MANIFEST.json", format=3)
    out, _ = run("inspect", directory, "--json", code=1)
    newest, older = json.loads(out)["checkpoints"]
    assert "Install a keras-preempt release that reads format version 3." in newest["problem"]
    assert older["problem"] is None


def test_a_newer_format_of_the_events_is_refused(directory: Path, run: Run) -> None:
    told = {"event": "notice", "time": time.time(), "member": 0, "format": 2}
    events(directory, 2, 1, told)
    _, err = run("inspect", directory, code=3)
    assert (
        "Expected events/00002.w00001.jsonl in format version 1 or older. Received: format version 2." in err
    )


def test_text_in_a_directory_cannot_control_the_terminal(tmp_path: Path, run: Run) -> None:
    bad = "\x1b[2J\nall is well"
    path = tmp_path / "run"
    store = begin(path)
    save(store, 6, kind=bad, reason=bad)
    (path / RUN).unlink()
    store.create(RUN, documents.encode_document({**IDENTITY, "run_id": bad, "optimizer_class": bad}))
    out, _ = run("inspect", path)
    assert "\x1b" not in out
    assert "\nall is well" not in out


def test_a_worker_under_notice_that_wrote_pieces_of_the_weights_counts_among_the_writers(
    tmp_path: Path,
) -> None:
    store, content = new_store(tmp_path), sharded_builders.sharded(5, sharded_builders.ALONE, 2)
    saved = sharded_builders.attempt_of(5, content, 2, writers=(0,), doomed=(1,))
    sharded_builders.save(store, saved)
    (summary,) = checkpoint_summary.checkpoints_of(store, verified=True)
    assert (summary.writers, summary.verified, summary.problem) == ((0, 1), True, None)
