"""``keras-preempt clean`` removes what retention would remove, no more, and only after a yes."""

from __future__ import annotations

import datetime
import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.retention import Retention, seconds_of
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.cli import clean as clean_module
from keras_preempt.testing import FakeGcs
from tests.checkpoint.builders import retain
from tests.cli.saved_run import Run, begin, contents, save


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


def steps(path: Path) -> list[int]:
    return sorted(int(folder.name.removeprefix("step-")) for folder in path.glob("step-*"))


def test_shows_what_would_go_and_removes_it_after_a_yes(
    directory: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    out, _ = run("clean", directory)
    shown = [line.split()[0] for line in out.splitlines() if line.startswith("step-")]
    assert shown == ["step-00000006/00001-0000", "step-00000009/00001-0003"]
    assert "the newest 2 stay" in out
    assert "Removed 2 folders, " in out.splitlines()[-1]
    assert steps(directory) == [7, 8, 10]


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_without_a_yes_nothing_is_removed(
    directory: Path, answer: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(directory)
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    out, err = run("clean", directory, code=1)
    assert "Nothing was removed" in out + err
    assert answer or "pass --yes" in err
    assert contents(directory) == before


def test_removes_exactly_what_a_commit_would(directory: Path, tmp_path: Path, run: Run) -> None:
    other = Path(shutil.copytree(directory, tmp_path / "other"))
    retain(LocalStore(other), Retention(), 2)
    run("clean", directory, "--yes")
    assert contents(directory) == contents(other)


def test_by_default_keeps_what_the_last_start_keeps(directory: Path, run: Run) -> None:
    incarnations.claim(LocalStore(directory), {"retention": Retention(1, keep_every=3).to_json()})
    out, _ = run("clean", directory, "--yes")
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


def test_options_override_what_the_last_start_keeps(directory: Path, run: Run) -> None:
    incarnations.claim(LocalStore(directory), {"retention": Retention(9, keep_every="epoch").to_json()})
    run("clean", directory, "--yes", "--max-to-keep", "1", "--keep-every", "never")
    assert steps(directory) == [8]


def test_the_last_attempt_of_a_stopped_job_is_removed_too(directory: Path, run: Run) -> None:
    run("clean", directory, "--yes", "--stopped")
    assert steps(directory) == [7, 8]
    before = contents(directory)
    out, _ = run("clean", directory, "--yes", "--stopped")
    assert contents(directory) == before
    assert "Nothing to remove" in out


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Has something happen before the question is answered with yes."""

    def answer(happens: Callable[[], object]) -> None:
        monkeypatch.setattr(clean_module.click, "confirm", lambda question: [happens()])

    return answer


def test_checkpoints_that_are_needed_again_at_the_answer_stay(
    directory: Path, run: Run, meanwhile: Any
) -> None:
    meanwhile((directory / "step-00000008" / "00001-0002" / "w00000.part.json").unlink)
    run("clean", directory)
    assert 6 in steps(directory), "only two are whole any more"


def test_folders_that_others_remove_meanwhile_are_no_error(directory: Path, run: Run, meanwhile: Any) -> None:
    meanwhile(lambda: retain(LocalStore(directory), Retention(), 2))
    assert "Others have removed everything meanwhile." in run("clean", directory)[0]


def test_a_storage_failure_is_reported_with_what_was_removed(
    directory: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = clean_module.remove_attempt

    def remove(store: Any, folder: str) -> None:
        if folder.startswith("step-00000009"):
            raise StoreUnavailable("No permission.")
        real(store, folder)

    monkeypatch.setattr(clean_module, "remove_attempt", remove)
    _, err = run("clean", directory, "--yes", code=1)
    assert err == "Error: Removed 1 of 2 folders. No permission.\n"


def test_works_on_a_bucket(run: Run, bucket: FakeGcs) -> None:
    store = begin("gs://bucket/runs/1")
    for round, step in enumerate((6, 7)):
        save(store, step, round=round)
    store.close()
    run("clean", "gs://bucket/runs/1", "--max-to-keep", "1", "--yes")
    found = {name.split("/")[2] for name in bucket.objects("bucket") if "/step-" in name}
    assert found == {"step-00000007"}
