from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.cluster import WorkerExit
from keras_preempt.cluster.status import read_unsaid, record_exits, recorded_steps
from keras_preempt.process import environment
from keras_preempt.report import events
from keras_preempt.report.status import Status
from keras_preempt.testing import FakeGcs


@pytest.fixture
def status_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "status"
    folder.mkdir()
    monkeypatch.setenv(environment.STATUS_DIR, str(folder))
    return folder


def begin(directory: str, member: int, incarnation: int = 3) -> None:
    """What a worker does when its fit begins."""
    store = open_store(directory)
    log = events.EventLog(member)
    log.open(incarnation, store.append_log(events.log_name(incarnation, member)))
    log.emit("start", members=2)
    log.close()
    store.close()
    Status().begin(member, incarnation, store.key)


def told(directory: str) -> list[dict[str, object]]:
    store = open_store(directory)
    try:
        return [event for event in events.read(store) if event["event"] == "gone"]
    finally:
        store.close()


def test_the_exit_of_each_worker_is_recorded_beside_its_events(status_dir: Path, tmp_path: Path) -> None:
    directory = str(tmp_path / "run")
    for member in (0, 1):
        begin(directory, member)
    exits = [WorkerExit(1, -9, time.monotonic() - 50.0), WorkerExit(0, 75, time.monotonic())]
    said: list[str] = []
    record_exits(status_dir, exits, said.append, {1: 17}.get)
    gone = told(directory)
    assert [(event["member"], event["incarnation"], event["code"]) for event in gone] == [
        (1, 3, -9),
        (0, 3, 75),
    ]
    assert [event.get("step") for event in gone] == [17, None]
    assert float(str(gone[1]["time"])) - float(str(gone[0]["time"])) == pytest.approx(50.0, abs=1.0)
    assert said == []


def test_exits_are_recorded_in_a_bucket_too(status_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeGcs() as gcs:
        for name, value in gcs.environment().items():
            monkeypatch.setenv(name, value)
        begin("gs://bucket/run", 0)
        record_exits(status_dir, [WorkerExit(0, 0, time.monotonic())], pytest.fail)
        assert [event["code"] for event in told("gs://bucket/run")] == [0]


def test_a_worker_that_has_begun_no_fit_leaves_nothing(status_dir: Path, tmp_path: Path) -> None:
    (status_dir / "fit-1.json").write_text('{"directory": ')
    (status_dir / "fit-2.json").write_text("[]")
    exits = [WorkerExit(member, 1, time.monotonic()) for member in range(3)]
    record_exits(status_dir, exits, pytest.fail)
    assert [path.name for path in tmp_path.iterdir()] == ["status"]


def test_a_fit_has_not_said_how_it_ended_until_it_does_and_a_later_one_of_the_same_worker_has_not_either(
    status_dir: Path,
) -> None:
    began, said = status_dir / "fit-1.json", status_dir / "worker-1.json"
    seen = [read_unsaid(status_dir, 2)]
    for turn in range(2):
        for file in (began, said):
            file.write_text("{}")
            os.utime(file, (turn, turn + (0.5 if file is said else 0.25)))
            seen.append(read_unsaid(status_dir, 2))
    assert seen == [set(), {1}, set(), {1}, set()]


def test_a_removed_directory_is_not_created_again(status_dir: Path, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    begin(str(directory), 0)
    directory.rename(tmp_path / "kept")
    record_exits(status_dir, [WorkerExit(0, 0, time.monotonic())], pytest.fail)
    assert not directory.exists()


def test_a_record_that_cannot_be_written_is_one_line_and_no_error(status_dir: Path, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    begin(str(directory), 0)
    name = events.log_name(3, None)
    (directory / name).write_text("")
    said: list[str] = []
    record_exits(status_dir, [WorkerExit(0, 0, time.monotonic())], said.append)
    (line,) = said
    assert "how the workers ended could not be recorded in" in line
    assert name in line


def test_the_steps_of_a_drill_are_those_of_its_record(tmp_path: Path) -> None:
    lines = [{"what": "begin", "step": 5}, {"what": "at", "step": 12}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "00002.w00001.jsonl").write_text(text + '{"what": "at", "st')
    of_drill = {environment.DRILL_RECORD: str(tmp_path)}
    assert recorded_steps(of_drill, 2, 1) == 12
    assert recorded_steps(of_drill, 2, 0) is None
    assert recorded_steps({}, 2, 1) is None
