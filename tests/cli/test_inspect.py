"""``keras-preempt inspect`` shows what a directory holds, changes nothing, and says clearly what it cannot read."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint import documents, reader
from keras_preempt.checkpoint.layout import RUN
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.cli import checkpoint_summary
from tests.checkpoint import sharded_builders
from tests.checkpoint.builders import new_store
from tests.cli.saved_run import IDENTITY, begin, bucket, contents, events, run, save


def newer(path: Path, **changed: Any) -> None:
    """Replaces a document by one of a newer format."""
    path.write_bytes(documents.encode({**documents.decode(path.read_bytes(), ""), **changed}))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two starts: a periodic save; then one after a notice, by one writer, and an attempt that came to nothing."""
    path = tmp_path_factory.mktemp("saved") / "run"
    store = begin(path)
    save(store, 6)
    save(store, 7, round=1, committed=False)
    begin(path)
    save(
        store,
        9,
        writers=(1,),
        kind="preempted",
        position={"epoch": 1, "phase": "validation", "batch": 3, "step": 9},
    )
    notice = {"event": "notice", "time": time.time() - 5, "member": 0, "reason": "SIGTERM"}
    withdrawn = {**notice, "reason": "maintenance"}
    events(path, 2, 0, withdrawn, {**withdrawn, "event": "withdrawn"}, notice)
    return path


@pytest.fixture
def directory(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "run"))


def test_shows_every_checkpoint_and_why_it_was_made(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "inspect", str(directory))
    assert (code, err) == (0, "")
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
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(capsys, "inspect", str(directory))
    assert "\x1b[" in out
    rows = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", out).splitlines()]
    (row,) = (row for row in rows if row[:4] == ["9", "1", "val", "3"])
    assert row[-3:] == ["1/2", "preempted", "-"], "no cell is wrapped"


def test_json_has_all_of_it(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "inspect", str(directory), "--json", "--verify")
    told = json.loads(out)
    assert code == 0
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


def test_attempts_of_the_present_start_may_still_be_committed(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(LocalStore(directory), 10, committed=False)
    _, out, _ = run(capsys, "inspect", str(directory), "--json")
    assert [attempt["abandoned"] for attempt in json.loads(out)["left_over"]] == [False, True]


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def test_only_verify_finds_a_flipped_bit_in_a_tensor(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = directory / "step-00000009" / "00002-0000"
    flip_a_bit(folder / "w00001.mirrored.safetensors")
    code, out, _ = run(capsys, "inspect", str(directory))
    assert code == 0
    assert "--verify reads every byte" in out
    code, out, _ = run(capsys, "inspect", str(directory), "--verify")
    assert code == 1
    rows = [line.split() for line in out.splitlines()]
    assert [row[-1] for row in rows if row[:1] in (["9"], ["6"])] == ["NO", "yes"]
    assert "Expected step-00000009/00002-0000/w00001.mirrored.safetensors to be what was written" in out


@pytest.mark.parametrize("gone", ["w00000.part.json", "MANIFEST.json"])
def test_a_damaged_checkpoint_is_reported_and_the_others_are_shown(
    directory: Path, gone: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = directory / "step-00000009" / "00002-0000" / gone
    if gone == "MANIFEST.json":
        flip_a_bit(path)
    else:
        path.unlink()
    code, out, _ = run(capsys, "inspect", str(directory))
    assert code == 1
    assert f"step-00000009/00002-0000/{gone}" in out
    assert any(line.split()[:1] == ["6"] for line in out.splitlines())


WRITING = ("prepare", "create", "writer", "delete", "delete_tree", "append_log")


@pytest.mark.parametrize("options", [[], ["--verify"], ["--json"], ["--compare", "6", "newest"]])
def test_nothing_is_written(
    directory: Path, options: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(directory)
    for name in WRITING:
        monkeypatch.setattr(LocalStore, name, None)
    code, _, err = run(capsys, "inspect", str(directory), *options)
    assert (code, err.startswith("Error")) == ("--compare" in options, False)
    assert contents(directory) == before


def test_a_checkpoint_that_a_running_job_removes_meanwhile_is_no_error(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(directory)
    listed = checkpoint_summary.committed

    def remove_then(store_: Any) -> Any:
        found = listed(store_)
        store.delete_tree("step-00000006")
        return found

    monkeypatch.setattr(checkpoint_summary, "committed", remove_then)
    code, out, _ = run(capsys, "inspect", str(directory), "--verify", "--json")
    assert code == 0
    assert [checkpoint["step"] for checkpoint in json.loads(out)["checkpoints"]] == [9]


def test_a_checkpoint_that_is_removed_while_it_is_verified_is_no_error(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(directory)
    real = reader.verify_file

    def remove_first(*arguments: Any) -> None:
        store.delete_tree("step-00000009/00002-0000")
        real(*arguments)

    monkeypatch.setattr(reader, "verify_file", remove_first)
    code, out, _ = run(capsys, "inspect", str(directory), "--verify", "--json")
    assert code == 0
    assert [checkpoint["step"] for checkpoint in json.loads(out)["checkpoints"]] == [6]


def test_compare_shows_every_tensor(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "inspect", str(directory), "--compare", "6", "9")
    assert code == 1
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "12 of 12 values" in rows["model/net/dense/kernel"]
    assert rows["optimizer/adam/iteration"].endswith(" 3")
    words = [line for line in out.splitlines() if "model/net/words@0" in line]
    assert len(words) == 2
    assert all("identical" in line for line in words)
    assert "different: 8 of 10 tensors, 2 places of other state" in out
    assert "undisturbed" not in out


def test_compare_with_another_run_and_with_itself(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(begin(tmp_path / "other"), 9)
    where = str(directory)
    code, out, _ = run(capsys, "inspect", where, "--compare", "newest", str(tmp_path / "other"))
    assert code == 0, "whoever has written them, they hold the same"
    assert "identical: 10 tensors" in out
    code, out, _ = run(capsys, "inspect", where, "--compare", "6", f"{tmp_path / 'other'}@9", "--json")
    assert code == 1
    told = json.loads(out)
    assert told["identical"] is False
    (tensor,) = (tensor for tensor in told["tensors"] if tensor["name"] == "optimizer/adam/iteration")
    assert (tensor["largest"], tensor["shape"]) == (3.0, "int64[]")


def test_compare_names_the_available_steps(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "inspect", str(directory), "--compare", "6", "8")
    assert code == 3
    assert "Expected a checkpoint of step 8" in err
    assert "those of steps 9, 6. Pass one of them." in err


def test_works_on_a_bucket_with_the_permission_to_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with bucket(monkeypatch) as gcs:
        store = begin("gs://bucket/runs/1")
        save(store, 6)
        store.close()
        gcs.deny.update(("create", "delete", "update", "bucket"))
        code, out, err = run(capsys, "inspect", "gs://bucket/runs/1", "--verify", "--json")
        assert code == 0, err
        (checkpoint,) = json.loads(out)["checkpoints"]
        assert (checkpoint["step"], checkpoint["verified"]) == (6, True)
        code, _, err = run(capsys, "inspect", "gs://bucket/runs")
        assert code == 3
        assert "which holds runs: gs://bucket/runs/1. Pass one of them." in err
        code, _, err = run(capsys, "inspect", "gs://bucket/elsewhere")
        assert code == 3
        assert "gs://bucket/elsewhere, which is empty" in err
        gcs.deny.update(("get", "list"))
        code, _, err = run(capsys, "inspect", "gs://bucket/runs/1")
        assert code == 3
        assert "Received: 403" in err


def test_a_newer_format_of_one_checkpoint_is_reported_beside_the_others(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newer(directory / "step-00000009" / "00002-0000" / "MANIFEST.json", format=3)
    code, out, _ = run(capsys, "inspect", str(directory), "--json")
    assert code == 1
    newest, older = json.loads(out)["checkpoints"]
    assert "Install a keras-preempt release that reads format version 3." in newest["problem"]
    assert older["problem"] is None


def test_a_newer_format_of_the_events_is_refused(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = {"event": "notice", "time": time.time(), "member": 0, "format": 2}
    events(directory, 2, 1, told)
    code, _, err = run(capsys, "inspect", str(directory))
    assert code == 3
    assert (
        "Expected events/00002.w00001.jsonl in format version 1 or older. Received: format version 2." in err
    )


def test_text_in_a_directory_cannot_control_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = "\x1b[2J\nall is well"
    path = tmp_path / "run"
    store = begin(path)
    save(store, 6, kind=bad, reason=bad)
    (path / RUN).unlink()
    store.create(RUN, documents.encode({**IDENTITY, "run_id": bad, "optimizer_class": bad}))
    code, out, _ = run(capsys, "inspect", str(path))
    assert code == 0
    assert "\x1b" not in out
    assert "\nall is well" not in out


def test_starts_without_tensorflow() -> None:
    program = (
        "import sys; from keras_preempt.cli import inspect, export, clean; print('tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize("command", ["inspect", "export", "clean"])
def test_help_teaches_with_examples_and_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert f"keras-preempt {command} runs/1" in out
    assert "Exit codes:" in out
    assert max(map(len, out.splitlines())) <= 100


def test_a_worker_under_notice_that_wrote_pieces_of_the_weights_counts_among_the_writers(
    tmp_path: Path,
) -> None:
    store = new_store(tmp_path)
    sharded_builders.save(
        store,
        sharded_builders.attempt_of(
            5, sharded_builders.sharded(5, sharded_builders.ALONE, 2), 2, writers=(0,), doomed=(1,)
        ),
    )
    (summary,) = checkpoint_summary.checkpoints_of(store, verified=True)
    assert (summary.writers, summary.verified, summary.problem) == ((0, 1), True, None)
