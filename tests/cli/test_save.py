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

from keras_preempt.checkpoint import save_request
from keras_preempt.checkpoint.layout import SAVE_REQUEST
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.process import this_process
from tests.cli.launched import ENV, command_line
from tests.cli.saved_run import begin, events, run

SAVED, NOTHING_RUNS, CANNOT_READ, TIMED_OUT, NOT_SAVED = 0, 1, 3, 4, 5
WITHOUT_PRIVILEGES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--") if os.geteuid() == 0 else ()
PATIENCE = 240.0


def ask(directory: str | Path, *options: str, wrapper: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [*wrapper, *command_line("save", str(directory), *options)]
    return subprocess.Popen(command, text=True, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def answer(asked: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = asked.communicate(timeout=240)
    return asked.returncode, output


# -- Directories in which nobody answers ----------------------------------------------------------------


def elsewhere(directory: Path, **more: Any) -> None:
    """A start on another machine, of which nobody here knows whether it runs."""
    begin(directory)
    process = {**this_process.name(), "machine": "another"}
    events(directory, 1, 0, {"event": "start", "time": time.time(), "member": 0, "process": process, **more})


def test_a_job_that_does_not_look_is_waited_for_until_the_time_and_the_request_taken_back(
    tmp_path: Path, capsys: Any
) -> None:
    elsewhere(tmp_path / "run")
    code, _, errors = run(capsys, "save", str(tmp_path / "run"), "--timeout", "0.3")
    assert code == TIMED_OUT
    assert "has not looked at the request within 0.3 s" in errors
    assert not (tmp_path / "run" / SAVE_REQUEST).exists()


def test_a_request_of_somebody_else_is_waited_for_and_not_taken_back(tmp_path: Path, capsys: Any) -> None:
    elsewhere(tmp_path / "run")
    theirs, _ = save_request.make(open_store(tmp_path / "run"), 1, "there")
    assert run(capsys, "save", str(tmp_path / "run"), "--timeout", "0.3")[0] == TIMED_OUT
    assert save_request.read(open_store(tmp_path / "run")) == theirs


def test_without_waiting_the_request_stays(tmp_path: Path, capsys: Any) -> None:
    elsewhere(tmp_path / "run")
    code, output, _ = run(capsys, "save", str(tmp_path / "run"), "--no-wait")
    assert (code, "Asked start 1" in output) == (SAVED, True)
    assert (tmp_path / "run" / SAVE_REQUEST).exists()


def answering(directory: Path, tell: Callable[[str], list[dict[str, Any]]]) -> threading.Thread:
    """A job that takes the next request, and tells what follows from its id."""

    def job() -> None:
        store = open_store(directory)
        await_(lambda: (directory / SAVE_REQUEST).exists())
        asked = save_request.read(store)
        assert asked is not None
        (log,) = (directory / "events").glob("00001.w*")
        with log.open("a") as stream:
            for event in tell(asked.id):
                stream.write(json.dumps({"time": time.time(), "member": 0, **event}) + "\n")
        save_request.remove(store, asked)

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
    told: list[tuple[str, dict[str, Any]]], code: int, says: str, tmp_path: Path, capsys: Any
) -> None:
    directory = tmp_path / "run"
    elsewhere(directory)
    job = answering(directory, lambda id: [{"event": kind, "id": id, **fields} for kind, fields in told])
    found, _, errors = run(capsys, "save", str(directory), "--timeout", "3")
    job.join()
    assert (found, says in errors) == (code, True), errors


def test_a_job_that_finishes_meanwhile_has_saved_its_end(tmp_path: Path, capsys: Any) -> None:
    directory = tmp_path / "run"
    elsewhere(directory)
    commit = {"event": "commit", "step": 9, "attempt": "00001-0003"}
    end = [{"event": "finish", "step": 9}, {"event": "end", "reason": "training is over"}]
    job = answering(directory, lambda id: [commit, *end])
    code, output, errors = run(capsys, "save", str(directory))
    job.join()
    assert (code, "Saved step 9" in output, "that is its end" in output) == (SAVED, True, True), errors


def test_an_answer_to_another_request_is_none(tmp_path: Path, capsys: Any) -> None:
    directory = tmp_path / "run"
    elsewhere(directory)
    other = {"event": "answered", "id": "another", "checkpoint": "step-00000003/00001-0000", "reason": ""}
    job = answering(directory, lambda id: [other])
    code, _, errors = run(capsys, "save", str(directory), "--timeout", "1")
    job.join()
    assert code == TIMED_OUT, errors


def test_a_job_that_is_started_again_is_asked_again(tmp_path: Path, capsys: Any) -> None:
    directory = tmp_path / "run"
    elsewhere(directory)

    def start_again() -> None:
        begin(directory)
        start = {"event": "start", "time": time.time(), "member": 0}
        events(directory, 2, 0, start)
        log = directory / "events" / "00001.w00000.jsonl"
        log.write_text(log.read_text() + json.dumps({**start, "event": "end", "reason": "lost"}) + "\n")
        await_(
            lambda: (asked := save_request.read(open_store(directory))) is not None and asked.incarnation == 2
        )
        asked = save_request.read(open_store(directory))
        assert asked is not None
        saved = {"event": "answered", "id": asked.id, "checkpoint": "step-00000009/00002-0000", "reason": ""}
        events(directory, 2, 0, start, {**start, **saved})

    def job() -> None:
        await_(lambda: (directory / SAVE_REQUEST).exists())
        start_again()

    thread = threading.Thread(target=job)
    thread.start()
    code, output, errors = run(capsys, "save", str(directory))
    thread.join()
    assert (code, "Saved step 9" in output) == (SAVED, True), errors


def test_the_fit_that_runs_is_asked_where_a_script_has_several(tmp_path: Path, capsys: Any) -> None:
    begin(tmp_path / "run")
    events(tmp_path / "run", 1, 0, {"event": "end", "time": time.time(), "member": 0, "reason": "over"})
    elsewhere(tmp_path / "run" / "fit-00002")
    code, output, _ = run(capsys, "save", str(tmp_path / "run"), "--no-wait")
    assert (code, "fit-00002" in output) == (SAVED, True)
    assert (tmp_path / "run" / "fit-00002" / SAVE_REQUEST).exists()


@pytest.mark.parametrize("there", ["nothing", "an empty directory", "other files"])
def test_what_is_no_directory_of_a_run_is_refused(there: str, tmp_path: Path, capsys: Any) -> None:
    place = tmp_path / "run"
    if there != "nothing":
        place.mkdir()
    if there == "other files":
        (place / "thesis.txt").touch()
    code, _, errors = run(capsys, "save", str(place))
    assert (code, "Expected the directory of a run" in errors) == (CANNOT_READ, True), errors
    assert not (place / SAVE_REQUEST).exists()


def test_a_foreign_file_of_that_name_is_refused_and_stays(tmp_path: Path, capsys: Any) -> None:
    elsewhere(tmp_path / "run")
    (tmp_path / "run" / SAVE_REQUEST).write_text("buy milk")
    code, _, errors = run(capsys, "save", str(tmp_path / "run"))
    assert (code, "Remove it, and ask again" in errors) == (CANNOT_READ, True), errors
    assert (tmp_path / "run" / SAVE_REQUEST).read_text() == "buy milk"


def test_who_may_not_write_there_is_told_so(tmp_path: Path) -> None:
    elsewhere(tmp_path / "run")
    (tmp_path / "run").chmod(0o555)
    try:
        code, output = answer(ask(tmp_path / "run", wrapper=WITHOUT_PRIVILEGES))
    finally:
        (tmp_path / "run").chmod(0o755)
    assert (code, "Permission denied" in output) == (CANNOT_READ, True), output


def await_(done: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < limit
        time.sleep(0.01)  # A file cannot be waited for, only looked at.
