from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keras_preempt.process import environment
from keras_preempt.report.status import Status

SESSION: Any = SimpleNamespace(steps_at_start=10, steps_run=5)


def written(folder: Path, member: int = 1) -> dict[str, Any]:
    status: dict[str, Any] = json.loads((folder / f"worker-{member}.json").read_text())
    return status


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(environment.STATUS_DIR, str(tmp_path))
    return tmp_path


def test_a_worker_that_no_launcher_started_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(environment.STATUS_DIR, raising=False)
    monkeypatch.chdir(tmp_path)
    Status().write(0, 1, SESSION)
    assert list(tmp_path.iterdir()) == []


def test_the_launcher_learns_how_far_training_came(folder: Path) -> None:
    status = Status()
    status.finished = True
    status.write(1, 3, SESSION)
    said = written(folder)
    assert (said["step"], said["steps_run"], said["finished"], said["incarnation"]) == (15, 5, True, 3)
    assert said["saved"] is False
    assert said["committed"] is said["exit_code"] is said["notice_at"] is None
    assert "train" not in said["timing"], "it never began"


def test_the_launcher_learns_of_the_earliest_notice_and_its_outcome(folder: Path) -> None:
    status = Status()
    status.notices = [20.0, 10.0]
    status.aligned_at, status.committed_at = 11.0, 12.0
    status.saved, status.committed, status.exit_code = True, "step-1/a", 75
    status.write(1, 1, SESSION)
    said = written(folder)
    assert (said["notice_at"], said["aligned_at"], said["committed_at"]) == (10.0, 11.0, 12.0)
    assert (said["saved"], said["committed"], said["exit_code"]) == (True, "step-1/a", 75)


def test_where_time_went_adds_up_and_nothing_is_negative(folder: Path) -> None:
    status = Status()
    status.spent("startup", 1.0)
    status.spent("startup", 0.5)
    status.began_training()
    status.spent("save", 1e6)  # longer than the training that it is a part of
    status.write(1, 1, SESSION)
    timing = written(folder)["timing"]
    assert timing["startup"] == 1.5
    assert timing["save"] == 1e6
    assert all(seconds >= 0 for seconds in timing.values())


def test_each_worker_has_its_own_file_and_no_partial_one_stays(folder: Path) -> None:
    Status().write(0, 1, SESSION)
    Status().write(1, 1, SESSION)
    Status().write(1, 2, SESSION)
    assert sorted(path.name for path in folder.iterdir()) == ["worker-0.json", "worker-1.json"]
    assert written(folder)["incarnation"] == 2


def test_a_file_that_cannot_be_written_is_logged_and_ends_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(environment.STATUS_DIR, str(folder / "gone"))
    Status().write(0, 1, SESSION)
    assert "worker-0.json" in caplog.text
    assert os.listdir(folder) == []
