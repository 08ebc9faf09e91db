"""``keras-preempt clean`` removes what retention would remove, no more, and only after a yes."""

from __future__ import annotations

import datetime
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.retention import Retention, retain, seconds_of
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.cli import clean as clean_module
from tests.cli.saved_run import begin, bucket, contents, run, save


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A start that has saved steps 6, 7 and 8 and left an attempt, and one that has left another."""
    path = tmp_path_factory.mktemp("saved") / "run"
    store = begin(path)
    for round, step in enumerate((6, 7, 8)):
        save(store, step, round=round)
    save(store, 9, round=3, committed=False)
    begin(path)
    save(store, 10, committed=False)
    (path / "notes.txt").write_text("mine")
    return path


@pytest.fixture
def directory(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "run"))


def steps(path: Path) -> list[int]:
    return sorted(int(folder.name.removeprefix("step-")) for folder in path.glob("step-*"))


def test_shows_what_would_go_and_removes_it_after_a_yes(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    code, out, _ = run(capsys, "clean", str(directory))
    assert code == 0
    shown = [line.split()[0] for line in out.splitlines() if line.startswith("step-")]
    assert shown == ["step-00000006/00001-0000", "step-00000009/00001-0003"]
    assert "the newest 2 stay" in out
    assert "Removed 2 folders, " in out.splitlines()[-1]
    assert steps(directory) == [7, 8, 10]


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_without_a_yes_nothing_is_removed(
    directory: Path, answer: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(directory)
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    code, out, err = run(capsys, "clean", str(directory))
    assert code == 1
    assert "Nothing was removed" in out + err
    assert answer or "pass --yes" in err
    assert contents(directory) == before


def test_removes_exactly_what_a_commit_would(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Path(shutil.copytree(directory, tmp_path / "other"))
    retain(LocalStore(other), Retention(), 2)
    assert run(capsys, "clean", str(directory), "--yes")[0] == 0
    assert contents(directory) == contents(other)


def test_by_default_keeps_what_the_last_start_keeps(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    incarnations.claim(LocalStore(directory), {"retention": Retention(1, keep_every=3).to_json()})
    code, out, _ = run(capsys, "clean", str(directory), "--yes")
    assert code == 0
    assert "the newest stays, and the first of every 3 steps" in out
    assert steps(directory) == [6, 8], "and what the start before the last has left is abandoned now"


@pytest.mark.parametrize(
    "every", [None, 7, "epoch", "1h", datetime.timedelta(microseconds=3), datetime.timedelta(2)]
)
def test_what_a_start_keeps_is_kept_in_its_claim(every: Any) -> None:
    kept = Retention.from_json(json.loads(json.dumps(Retention(3, every).to_json())))
    assert kept.max_to_keep == 3
    if isinstance(every, datetime.timedelta):
        assert seconds_of(kept.keep_every) == every.total_seconds()
    else:
        assert kept.keep_every == every


def test_options_override_what_the_last_start_keeps(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    incarnations.claim(LocalStore(directory), {"retention": Retention(9, keep_every="epoch").to_json()})
    code, _, _ = run(capsys, "clean", str(directory), "--yes", "--max-to-keep", "1", "--keep-every", "never")
    assert code == 0
    assert steps(directory) == [8]


def test_the_last_attempt_of_a_stopped_job_is_removed_too(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "clean", str(directory), "--yes", "--stopped")[0] == 0
    assert steps(directory) == [7, 8]
    before = contents(directory)
    code, out, _ = run(capsys, "clean", str(directory), "--yes", "--stopped")
    assert (code, contents(directory)) == (0, before)
    assert "Nothing to remove" in out


def test_checkpoints_that_are_needed_again_at_the_answer_stay(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirm(question: str) -> bool:
        (directory / "step-00000008" / "00001-0002" / "w00000.part.json").unlink()
        return True

    monkeypatch.setattr(clean_module.click, "confirm", confirm)
    assert run(capsys, "clean", str(directory))[0] == 0
    assert 6 in steps(directory), "only two are whole any more"


def test_folders_that_others_remove_meanwhile_are_no_error(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirm(question: str) -> bool:
        retain(LocalStore(directory), Retention(), 2)
        return True

    monkeypatch.setattr(clean_module.click, "confirm", confirm)
    code, out, _ = run(capsys, "clean", str(directory))
    assert code == 0
    assert "Others have removed everything meanwhile." in out


def test_a_storage_failure_is_reported_with_what_was_removed(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = clean_module.remove

    def remove(store: Any, folder: str) -> None:
        if folder.startswith("step-00000009"):
            raise StoreUnavailable("No permission.")
        real(store, folder)

    monkeypatch.setattr(clean_module, "remove", remove)
    code, _, err = run(capsys, "clean", str(directory), "--yes")
    assert code == 1
    assert err == "Error: Removed 1 of 2 folders. No permission.\n"


def test_works_on_a_bucket(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with bucket(monkeypatch) as gcs:
        store = begin("gs://bucket/runs/1")
        for round, step in enumerate((6, 7)):
            save(store, step, round=round)
        store.close()
        code, _, err = run(capsys, "clean", "gs://bucket/runs/1", "--max-to-keep", "1", "--yes")
        assert code == 0, err
        found = {name.split("/")[2] for name in gcs.objects("bucket") if "/step-" in name}
        assert found == {"step-00000007"}
