"""``keras-preempt save``: real jobs that are asked, and directories in which nobody answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint import save_request
from keras_preempt.checkpoint.layout import SAVE_REQUEST
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.process import this_process
from keras_preempt.testing import FakeGcs
from tests.cli.launched import ENV, command_line
from tests.cli.saved_run import begin, events, run
from tests.cluster.bucket import URL, bucket_of_this_process
from tests.cluster.harness import RunningCluster, start_cluster
from tests.cluster.training import SCRIPT, Strike, Training, Undisturbed

SAVED, NOTHING_RUNS, CANNOT_READ, TIMED_OUT, NOT_SAVED = 0, 1, 3, 4, 5
WITHOUT_PRIVILEGES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--") if os.geteuid() == 0 else ()
PATIENCE = 60.0


def ask(directory: str | Path, *options: str, wrapper: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [*wrapper, *command_line("save", str(directory), *options)]
    return subprocess.Popen(command, text=True, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def answer(asked: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = asked.communicate(timeout=240)
    return asked.returncode, output


def started(tmp_path: Path, workers: int, *args: str) -> tuple[Training, RunningCluster]:
    training = Training(tmp_path, workers, args)
    return training, start_cluster(SCRIPT, workers, args=training.command)


# -- Real jobs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_all_workers_save_at_one_step_and_train_on_as_if_nothing_had_happened(
    workers: int, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training, job = started(tmp_path, workers, "--save-on-request", "0.2s", "--slow", "0.3")
    with job:
        job.wait_for_line(0, "^AT batch 0 0")
        both = [ask(training.directory), ask(training.directory)]
        for code, output in map(answer, both):
            assert code == SAVED, output
            assert "Saved step " in output
        training.results.append(job.wait(240).assert_ok())
    saves = [training.events(worker)[0] for worker in range(workers)]
    rounds = [[plan["target"] for plan in each["plan"] if plan["reason"] == "requested"] for each in saves]
    assert rounds == [rounds[0]] * workers
    assert 1 <= len(rounds[0]) <= 2, "two requests at once are one, or one after the other"
    assert [each["checkpoint"] for each in saves[0]["answered"]] == [
        f"step-{commit['step']:08d}/{commit['attempt']}" for commit in saves[0]["commit"][: len(rounds[0])]
    ]
    assert not (training.directory / SAVE_REQUEST).exists()
    training.assert_same(undisturbed(workers))


def test_a_job_that_is_preempted_meanwhile_answers_with_what_it_saves_then(tmp_path: Path) -> None:
    training, job = started(tmp_path, 1, "--save-on-request", "1h", "--slow", "0.3")
    with job:
        job.wait_for_line(0, "^AT batch 0 0")
        asked = ask(training.directory)
        await_(lambda: (training.directory / SAVE_REQUEST).exists())
        job.signal(0, signal.SIGTERM)
        code, output = answer(asked)
        job.wait(120).assert_codes(75)
    assert code == SAVED, output
    assert "told to stop meanwhile" in output
    assert not (training.directory / SAVE_REQUEST).exists()


def test_nothing_runs_after_the_end_and_after_a_kill(tmp_path: Path, capsys: Any) -> None:
    training = Training(tmp_path, 1, ("--save-every", "2"))
    training.crash(Strike("batch 1 2", (0,), signal="SIGKILL", commits=2))
    code, _, errors = run(capsys, "save", str(training.directory))
    assert (code, "worker 0 of start 1 is gone without a word" in errors) == (NOTHING_RUNS, True), errors
    training.finish()
    code, _, errors = run(capsys, "save", str(training.directory))
    assert (code, "start 2 has ended (training is over)" in errors) == (NOTHING_RUNS, True), errors
    assert not (training.directory / SAVE_REQUEST).exists()


@pytest.fixture
def gcs(tmp_path: Path) -> Iterator[FakeGcs]:
    with bucket_of_this_process(tmp_path) as server:
        yield server


def test_in_a_bucket_each_look_is_one_request_for_the_metadata_of_one_object(
    gcs: FakeGcs, capsys: Any
) -> None:
    from tests.cluster.small_fit import fit
    from tests.cluster.test_gcs_fit import Then

    codes: list[int] = []
    looks: list[str] = []
    asking = threading.Thread(target=lambda: codes.append(run(capsys, "save", URL)[0]))

    def about_the_request() -> list[str]:
        return [request.text.partition("?")[0] for request in gcs.requests if SAVE_REQUEST in request.text]

    def ask_after_three_looks() -> None:
        await_(lambda: len(about_the_request()) >= 3)
        looks.extend(about_the_request())
        asking.start()
        await_(lambda: any(text.startswith("DELETE ") for text in about_the_request()))

    fit(URL, save_on_request="0.05s", more=[Then((0, 1), ask_after_three_looks)])
    asking.join()
    assert codes == [SAVED]
    assert {look.split(" ")[0] for look in looks} == {"GET"}
    assert all(look.endswith(f"/o/runs%2F1%2F{SAVE_REQUEST}") for look in looks), looks


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
