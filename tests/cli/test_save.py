"""``keras-preempt save`` in directories where no real job answers; tests/cluster/test_save_on_request.py has such."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint.layout import SAVE_REQUEST
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.process import this_process
from keras_preempt.training.save import requests
from tests.cli.launched import ENV, command_line
from tests.cli.saved_run import Run, begin, events, save

SAVED, NOTHING_RUNS, CANNOT_READ, TIMED_OUT, NOT_SAVED = 0, 1, 3, 4, 5
WITHOUT_PRIVILEGES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--") if os.geteuid() == 0 else ()
PATIENCE = 240.0


def elsewhere(directory: Path) -> Path:
    """A start on another machine, of which nobody here knows whether it runs."""
    begin(directory)
    process = {**this_process.name(), "machine": "another"}
    events(directory, 1, 0, {"event": "start", "time": time.time(), "member": 0, "process": process})
    return directory


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return elsewhere(tmp_path / "run")


def test_a_job_that_does_not_look_is_waited_for_until_the_time_and_the_request_taken_back(
    directory: Path, run: Run
) -> None:
    _, errors = run("save", directory, "--timeout", "0.3", code=TIMED_OUT)
    assert "has not looked at the request within 0.3 s" in errors
    assert not (directory / SAVE_REQUEST).exists()


def test_a_request_of_somebody_else_is_waited_for_and_not_taken_back(directory: Path, run: Run) -> None:
    theirs, _ = requests.make_request(open_store(directory), 1, "there")
    run("save", directory, "--timeout", "0.3", code=TIMED_OUT)
    assert requests.pending_request(open_store(directory)) == theirs


def test_without_waiting_the_request_stays(directory: Path, run: Run) -> None:
    output, _ = run("save", directory, "--no-wait")
    assert "Asked start 1" in output
    assert (directory / SAVE_REQUEST).exists()


def asked_of(directory: Path, start: int) -> requests.SaveRequest:
    """Waits until a start of the job is asked."""
    limit = time.monotonic() + PATIENCE
    while (asked := requests.pending_request(open_store(directory))) is None or asked.incarnation != start:
        assert time.monotonic() < limit
        time.sleep(0.01)  # A file cannot be waited for, only looked at.
    return asked


def answering(directory: Path, tell: Callable[[str], list[dict[str, Any]]]) -> threading.Thread:
    """A job that takes the next request, and tells what follows from its id."""

    def job() -> None:
        asked = asked_of(directory, 1)
        (log,) = (directory / "events").glob("00001.w*")
        with log.open("a") as stream:
            for event in tell(asked.id):
                stream.write(json.dumps({"time": time.time(), "member": 0, **event}) + "\n")
        requests.remove_request(open_store(directory), asked)

    thread = threading.Thread(target=job)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("told", "code", "says"),
    [
        (
            [("answered", {"checkpoint": None, "reason": "the save has failed"})],
            NOT_SAVED,
            "the save has failed",
        ),
        ([("requested", {})], TIMED_OUT, "has seen the request, and has not saved"),
        ([("requested", {}), ("end", {"reason": "ValueError: mine"})], NOTHING_RUNS, "(ValueError: mine)"),
        ([("requested", {}), ("gone", {"code": -9})], NOTHING_RUNS, "with exit code -9"),
    ],
    ids=["could not save", "slow", "failed", "killed"],
)
def test_whatever_becomes_of_the_job_is_told(
    told: list[tuple[str, dict[str, Any]]], code: int, says: str, directory: Path, run: Run
) -> None:
    job = answering(directory, lambda id: [{"event": kind, "id": id, **fields} for kind, fields in told])
    patience = "3" if code == TIMED_OUT else "60"
    _, errors = run("save", directory, "--timeout", patience, code=code)
    job.join()
    assert says in errors


def test_a_save_that_no_event_tells_of_counts(directory: Path, run: Run) -> None:
    def job() -> None:
        asked = asked_of(directory, 1)
        store = open_store(directory)
        save(store, 895, kind="requested")
        requests.remove_request(store, asked)

    thread = threading.Thread(target=job)
    thread.start()
    output, _ = run("save", directory, "--timeout", "3", code=SAVED)
    thread.join()
    assert "Saved step 895" in output
    assert "could not write its events" in output


def test_a_job_that_finishes_meanwhile_has_saved_its_end(directory: Path, run: Run) -> None:
    commit = {"event": "commit", "step": 9, "attempt": "00001-0003"}
    end = [{"event": "finish", "step": 9}, {"event": "end", "reason": "training is over"}]
    job = answering(directory, lambda id: [commit, *end])
    output, _ = run("save", directory)
    job.join()
    assert "Saved step 9" in output
    assert "that is its end" in output


def test_an_answer_to_another_request_is_none(directory: Path, run: Run) -> None:
    other = {"event": "answered", "id": "another", "checkpoint": "step-00000003/00001-0000", "reason": ""}
    job = answering(directory, lambda id: [other])
    run("save", directory, "--timeout", "1", code=TIMED_OUT)
    job.join()


def test_a_job_that_is_started_again_is_asked_again(directory: Path, run: Run) -> None:
    def job() -> None:
        asked_of(directory, 1)
        begin(directory)
        start = {"event": "start", "time": time.time(), "member": 0}
        events(directory, 2, 0, start)
        log = directory / "events" / "00001.w00000.jsonl"
        log.write_text(log.read_text() + json.dumps({**start, "event": "end", "reason": "lost"}) + "\n")
        asked = asked_of(directory, 2)
        saved = {"event": "answered", "id": asked.id, "checkpoint": "step-00000009/00002-0000", "reason": ""}
        events(directory, 2, 0, start, {**start, **saved})

    thread = threading.Thread(target=job)
    thread.start()
    output, _ = run("save", directory)
    thread.join()
    assert "Saved step 9" in output


def test_the_fit_that_runs_is_asked_where_a_script_has_several(tmp_path: Path, run: Run) -> None:
    begin(tmp_path / "run")
    events(tmp_path / "run", 1, 0, {"event": "end", "time": time.time(), "member": 0, "reason": "over"})
    elsewhere(tmp_path / "run" / "fit-00002")
    output, _ = run("save", tmp_path / "run", "--no-wait")
    assert "fit-00002" in output
    assert (tmp_path / "run" / "fit-00002" / SAVE_REQUEST).exists()


def test_a_foreign_file_of_that_name_is_refused_and_stays(directory: Path, run: Run) -> None:
    (directory / SAVE_REQUEST).write_text("buy milk")
    assert "Remove it, and ask again" in run("save", directory, code=CANNOT_READ)[1]
    assert (directory / SAVE_REQUEST).read_text() == "buy milk"


def test_who_may_not_write_there_is_told_so(directory: Path) -> None:
    directory.chmod(0o555)
    try:
        command = [*WITHOUT_PRIVILEGES, *command_line("save", str(directory))]
        done = subprocess.run(command, text=True, env=ENV, capture_output=True, timeout=PATIENCE)
    finally:
        directory.chmod(0o755)
    assert (done.returncode, "Permission denied" in done.stderr) == (CANNOT_READ, True), done.stderr
