"""How the doctor tells that a command is a custom loop, and when it can be signalled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keras_preempt.cli.doctor import watched
from keras_preempt.cli.doctor.watched import Loops, uses_handler


@pytest.mark.parametrize(
    "command",
    [
        ["python", "my loop.py"],
        ["sh", "-c", "cd . && exec python jobs/loop.py --epochs 3; true"],
        ["keras-preempt", "run", "--workers", "2", "--", "python", "jobs/loop.py"],
        ["python", "-m", "jobs.loop"],
        ["python", "-m", "jobs"],
    ],
)
def test_a_script_that_uses_the_handler_is_found(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    names = ("my loop.py", "jobs/loop.py", "jobs/__main__.py")
    for name in names:
        (tmp_path / name).write_text("with PreemptionCallback(directory): ...")
    assert not uses_handler(command)
    for name in names:
        (tmp_path / name).write_text("with PreemptionCheckpointHandler(None, checkpoint, directory): ...")
    assert uses_handler(command)


def test_what_names_no_script_uses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not uses_handler(["sleep", "600"])
    assert not uses_handler(["python", "gone.py"])
    assert not uses_handler(["sh", "-c", "echo 'it is no script"])


def test_loops_run_once_every_worker_listens_and_has_had_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(watched.time, "monotonic", lambda: now)
    both = Loops(tmp_path, 2)
    (tmp_path / "process-0.json").write_text(json.dumps({"machine": "here", "pid": 7}))
    (tmp_path / "fit-1.json").write_text("{}")
    assert not both.trains()
    now += 60.0
    assert not both.trains()
    (tmp_path / "process-1.json").write_text(json.dumps({"machine": "here", "pid": 8}))
    assert both.processes() == {0: {"machine": "here", "pid": 7}, 1: {"machine": "here", "pid": 8}}
    assert not both.trains()
    now += 10.0
    assert both.trains()
