"""``keras-preempt report --watch`` on runs that are told event by event, in a pipe, on a terminal and in a bucket."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.cli import watch as watch_module
from keras_preempt.cli.terminal import Terminal
from keras_preempt.cli.watch import PATIENCE, Watch
from keras_preempt.report.loading import Loader
from keras_preempt.testing import FakeGcs
from tests.cli.reported import logs_of, preempted, write
from tests.cli.saved_run import Run
from tests.docs.shown import assert_shown
from tests.report.record import RECORDED
from tests.report.story import Story

WATCH = [sys.executable, "-m", "keras_preempt", "report", "--watch"]
PATIENT = 300.0

Watching = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def watching() -> Iterator[Watching]:
    """Starts a watch in a pipe; it has ended when the test has."""
    started: list[subprocess.Popen[bytes]] = []

    def start(directory: Path, *options: str) -> subprocess.Popen[bytes]:
        command = [*WATCH, str(directory), *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def lines_until(process: subprocess.Popen[bytes], text: str) -> list[str]:
    """Reads lines up to one that contains a text."""
    assert process.stdout is not None
    found = b""
    limit = time.monotonic() + PATIENT
    while not found.endswith(b"\n") or text.encode() not in found.splitlines()[-1]:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, limit - time.monotonic()))
        piece = process.stdout.readline() if ready else b""
        assert piece, f"{text!r} was not printed, but {found!r}"
        found += piece
    return found.decode().splitlines()


def begin(directory: Path, story: Story) -> None:
    """Writes the directory of a run; whoever watches sees all of it at once."""
    other = directory.with_name("begun")
    write(str(other), story)
    other.rename(directory)


def add(directory: Path, story: Story) -> None:
    """Writes what a story has told more than the directory holds."""
    for name, data in sorted(logs_of(story).items()):
        with (directory / name).open("ab") as log:
            log.write(data[log.tell() :])


def test_in_a_pipe_it_waits_for_the_run_prints_what_changes_and_ends_with_it(
    tmp_path: Path, watching: Watching
) -> None:
    run = tmp_path / "run"
    process = watching(run)
    lines_until(process, f"{run}: there is nothing yet")
    story = Story(2, launcher=False).begin().train(9, 9.0).save()
    begin(run, story)
    lines = lines_until(process, "saved")
    assert [line.split(" ", 1)[1] for line in lines] == [
        "start 1: 2 workers",
        "start 1 trains from step 0",
        "step 10 saved in 0.50 s",
    ]
    add(run, story.train(2, 2.0).preempt())
    lines = lines_until(process, "preempted")
    assert sorted(line.split(" ", 1)[1] for line in lines) == [
        "notice: SIGTERM to w0 (signal)",
        "notice: SIGTERM to w1 (signal)",
        "start 1 preempted: SIGTERM to w0; SIGTERM to w1; saved at step 12",
        "step 12 saved in 3.00 s",
    ]
    add(run, story.pause(2.0).begin(restored=12).train(5, 5.0).finish())
    out, err = process.communicate(timeout=PATIENT)
    assert (process.returncode, err) == (0, b"")
    assert b"start 2 trains from step 12, restored from step-00000012/00001-9999" in out
    assert b" start 1 preempted" not in out, "it is told already"
    assert f"{run}: finished at step 18 after 2 starts of 2 workers\n".encode() in out


def test_a_run_that_is_over_is_told_as_the_page_shows_it(run: Run) -> None:
    assert_shown("watched run", run("report", RECORDED, "--watch")[0])


class OnATerminal:
    """A watch on a terminal of 100 columns and 30 rows."""

    def __init__(self, directory: Path) -> None:
        self.seen = b""
        child, self._master = pty.fork()
        if child == 0:
            os.environ.update(TERM="xterm-256color", COLUMNS="100", LINES="30")
            # Ignored where a shell runs tests in the background.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execv(sys.executable, [*WATCH, str(directory)])
        self._child = child

    def wait_for(self, text: str) -> None:
        limit = time.monotonic() + PATIENT
        while text.encode() not in self.seen:
            ready, _, _ = select.select([self._master], [], [], max(0.0, limit - time.monotonic()))
            assert ready, self.seen
            self.seen += os.read(self._master, 65536)

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    def tell(self, number: int) -> None:
        os.kill(self._child, number)

    def ended(self) -> int:
        while True:
            try:
                piece = os.read(self._master, 65536)
            except OSError:  # The terminal's other end is closed.
                break
            if not piece:
                break
            self.seen += piece
        os.close(self._master)
        return os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])


HIDDEN, SHOWN = b"\x1b[?25l", b"\x1b[?25h"


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM", "finished"])
def test_on_a_terminal_it_leaves_that_clean(how: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    story = Story(launcher=False).begin().train(9, 9.0).save()
    write(str(run), story)
    terminal = OnATerminal(run)
    terminal.wait_for("Ctrl-C ends the watching")
    assert HIDDEN in terminal.seen
    if how == "Ctrl-C":
        terminal.press(b"\x03")
    elif how == "SIGTERM":
        terminal.tell(signal.SIGTERM)
    else:
        add(run, story.finish())
    assert terminal.ended() == (143 if how == "SIGTERM" else 0)
    after = terminal.seen.rpartition(HIDDEN)[2]
    assert SHOWN in after
    assert b"Traceback" not in terminal.seen
    # What is left on the screen is the report, or nothing.
    assert (b"Starts of the job" in after) is (how != "SIGTERM")


def test_a_reader_that_goes_away_ends_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write(str(run), Story(launcher=False).begin().train(9, 9.0))
    command = ["bash", "-c", f"{' '.join(WATCH)} {run} | head -1; exit ${{PIPESTATUS[0]}}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENT)
    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (4, 1, "")


def test_it_gives_up_when_the_time_is_over(tmp_path: Path, run: Run) -> None:
    assert "there is nothing yet" in run("report", tmp_path / "run", "--watch", "--timeout", "0.1", code=4)[0]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--watch", "--json"), 2, "--watch without --json"),
        (("--watch", "--over"), 2, "--watch without --over"),
        (("--timeout", "5"), 2, "together with --watch"),
        (("--watch",), 3, "with other files in it"),
    ],
)
def test_wrong_usage_and_something_else_than_a_run_are_refused_at_once(
    options: tuple[str, ...], code: int, message: str, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "notes.txt").write_text("")
    assert message in run("report", tmp_path, *options, code=code)[1]


def test_the_page_is_written_again_when_something_has_happened(tmp_path: Path, watching: Watching) -> None:
    run, page = tmp_path / "run", tmp_path / "page.html"
    story = Story(launcher=False).begin().train(9, 9.0)
    write(str(run), story)
    process = watching(run, "--html", str(page))
    lines_until(process, "start 1 trains")
    add(run, story.finish())
    process.communicate(timeout=PATIENT)
    assert "Finished at step 10" in page.read_text()


def test_a_look_at_a_bucket_in_which_nothing_has_happened_is_one_request(bucket: FakeGcs) -> None:
    write("gs://bucket/run", preempted())
    store = open_store("gs://bucket/run")
    loader = Loader(store)
    first = loader.load()
    bucket.forget_requests()
    again = loader.load()
    assert [request.method for request in bucket.requests] == ["GET"]
    assert again == first
    store.close()


def test_the_longer_nothing_happens_in_a_bucket_the_more_seldom_it_looks(
    bucket: FakeGcs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            bucket.fail_next("503", match="bucket")  # A failure now and then ends nothing.
        if len(pauses) == 6:
            write("gs://bucket/run", preempted())

    store = open_store("gs://bucket/run")
    monkeypatch.setattr(watch_module.time, "sleep", sleep)
    assert Watch(store, "gs://bucket/run", None).run(Terminal()) is True
    store.close()
    least, most = PATIENCE[False]
    assert pauses[0] == least
    assert pauses[1] == 2 * least
    assert max(pauses) == pauses[-1] == most
    assert "start 2 finished" in capsys.readouterr().out
