"""`keras_preempt.testing.drill` on a stand-in for a training: every verdict, and nothing left however it ends."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.process import environment
from keras_preempt.testing import DrillPreemption, DrillVerdict, drill
from keras_preempt.testing.drills import running
from tests.cli.drill.test_json import schema
from tests.cluster.harness import is_running
from tests.testing.conftest import PATIENT, wait_until
from tests.testing.drills import trained
from tests.testing.drills.trained import FAKE

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go in these tests, and must be gone afterwards."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def test_a_script_that_resumes_exactly_is_identical(scratch: Path) -> None:
    verdict = drill(FAKE, workers=2, at="step:4", seed=7)
    assert verdict.identical, verdict
    assert (verdict.verdict, verdict.exit_status, verdict.workers, verdict.seed) == ("identical", 0, 2, 7)
    assert [(each.step, each.moment) for each in verdict.preemptions] == [(4, "step")]
    assert verdict.steps_lost == 0
    assert verdict.steps == 20
    assert "drill 2 of 2: preempted" in verdict.output
    assert str(verdict).startswith("identical: 3 tensors and all other state; preempted: w")
    assert list(scratch.iterdir()) == []


def test_a_function_is_drilled_by_its_name_and_a_difference_is_told(tmp_path: Path) -> None:
    verdict = drill(trained.train, "weights", at="step:7", kill=True, save_every=5, log=tmp_path / "log")
    assert verdict.verdict == "different"
    assert [each.name for each in verdict.tensors_different] == ["weights"]
    parting = verdict.first_different_step
    assert parting is not None
    assert (parting.fit, parting.step, parting.what) == (1, 5, ("weights",))
    assert verdict.steps_lost == 2
    assert any("not restored" in cause for cause in verdict.likely_causes)
    assert verdict.log == tmp_path / "log"
    assert verdict.output in (tmp_path / "log").read_text()
    assert "likely cause: " in str(verdict)
    assert repr(verdict).startswith("<DrillVerdict different: 1 of 2 tensors (weights)")


def test_a_run_that_fails_gives_no_verdict_and_shows_why() -> None:
    verdict = drill(trained.needs_what_is_missing)
    assert (verdict.verdict, verdict.identical, verdict.exit_status) == ("none", False, 3)
    assert str(verdict).startswith("no verdict: the undisturbed run failed (exit code 1)")
    assert "there is no data" in str(verdict)


def test_a_command_may_be_given_in_words(tmp_path: Path) -> None:
    told = tmp_path / "told"
    line = f'echo "$0" >> {told}; exec {sys.executable} {FAKE}'
    verdict = drill(["bash", "-c", line], 5, at=["step:3", "step:9"])
    assert verdict.identical, verdict
    assert [each.step for each in verdict.preemptions] == [3, 9]
    assert told.read_text().split() == ["5"] * 4


def made_inside() -> Callable[..., None]:
    def inside() -> None:
        """Cannot be imported."""

    return inside


TOP_LEVEL = "Expected a function at the top level of a module"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: drill(lambda: None), f"{TOP_LEVEL}. Received: <function <lambda>"),
        (lambda: drill(made_inside()), TOP_LEVEL),
        (lambda: drill(functools.partial(trained.train, "weights")), TOP_LEVEL),
        (lambda: drill(trained.Trainer().run_of_an_object), "method of an object"),
        (lambda: drill(3), "the path of a script, a command as a list of words, or a function. Received: 3"),
        (lambda: drill([]), "Expected the path of a script"),
        (lambda: drill("no/such/script.py"), "which does not exist in"),
        (lambda: drill(trained.train, object()), "Expected arguments for the function that JSON can hold"),
        (lambda: drill(FAKE, kill=True, grace=5), "Expected --kill or --grace"),
        (lambda: drill(FAKE, workers=0), "Expected --workers of at least 1"),
        (lambda: drill(FAKE, at="somewhere"), "somewhere"),
        (lambda: drill(FAKE, log="no/such/folder/log"), "Expected log to be a file that can be written"),
    ],
)
def test_what_no_worker_could_run_and_bad_arguments_are_refused_at_once(
    call: Callable[[], Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_a_worker_does_not_drill_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.DRILL_DIRECTORY, "/somewhere")
    with pytest.raises(RuntimeError, match="in a worker that a drill has started"):
        drill(trained.train)


def test_the_verdict_has_every_field_of_the_json() -> None:
    documented = getattr(schema, "__wrapped__", schema)()
    told = set(documented["properties"]) - {"format", "files_compared"}  # Of `drill --state` alone.
    assert {each.name for each in fields(DrillVerdict)} - {"output", "log", "kept"} == told


def test_a_drill_that_does_not_end_is_ended(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    real = subprocess.Popen.wait

    def wait(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        whole = 3 * (100.0 + running._BETWEEN)  # It trains twice, and goes on once.
        if timeout == whole:
            wait_until(told.exists, "the worker has begun")
            raise subprocess.TimeoutExpired(process.args, timeout)
        return real(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    with pytest.raises(TimeoutError, match="Expected the drill to end within 480 s"):
        drill(trained.hang, str(told), timeout=100.0)
    assert not is_running(int(told.read_text()))
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "SIGKILL"])
def test_workers_end_with_the_process_that_has_called(number: int, tmp_path: Path, scratch: Path) -> None:
    told = tmp_path / "told"
    # A shell that runs tests in the background has them ignore Ctrl-C.
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    program += "from keras_preempt.testing import drill; from tests.testing.drills import trained; "
    program += f"drill(trained.hang, {str(told)!r})"
    caller = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.PIPE)
    wait_until(told.exists, "the worker has begun")
    caller.send_signal(number)
    try:
        _, error = caller.communicate(timeout=PATIENT)
    finally:
        caller.kill()
    assert (b"KeyboardInterrupt" in error) is (number == signal.SIGINT)
    wait_until(lambda: not is_running(int(told.read_text())), "the worker has ended")
    wait_until(lambda: list(scratch.iterdir()) == [], "temporary files are removed")


DRILLED = f"""
import os, runpy
from keras_preempt.testing import drill

def train(fault):
    os.environ["FAKE_FAULT"] = fault
    runpy.run_path({str(FAKE)!r}, run_name="__main__")

def test_it_is_noticed(preemption_drill):
    assert preemption_drill(train, "weights", at="step:3").identical

if __name__ == "__main__":
    print(drill(train, "", at="step:3").verdict)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A script of a user, which is also a test."""
    path = tmp_path / "their tests" / "test_training.py"
    path.parent.mkdir()
    path.write_text(DRILLED)
    return path


def python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    how = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "cwd": folder, "timeout": PATIENT}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, **how)


def test_a_function_of_a_script_is_drilled(own: Path) -> None:
    done = python(str(own), folder=own.parent)
    assert (done.stdout, done.stderr) == ("identical\n", "")


def test_the_fixture_keeps_the_log_and_shows_the_verdict_of_a_test_that_fails(
    own: Path, tmp_path: Path
) -> None:
    options = ["-p", "no:cacheprovider", "--import-mode=importlib", "--basetemp", str(tmp_path / "base")]
    done = python("-m", "pytest", *options, str(own), folder=own.parent)
    assert "1 failed" in done.stdout, done.stdout + done.stderr
    assert "drill 1: different: 1 of 2 tensors (weights)" in done.stdout
    assert "<DrillVerdict different" in done.stdout
    log = tmp_path / "base" / "test_it_is_noticed0" / "drill-1.log"
    assert "VERDICT: different" in log.read_text()
    assert f"log: {log}" in done.stdout


def test_pytest_finds_the_fixture_where_the_package_is_installed() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert (
        '[project.entry-points.pytest11]\nkeras_preempt = "keras_preempt.testing.pytest_plugin"\n' in project
    )


def test_a_json_of_a_later_version_is_read() -> None:
    told: dict[str, Any] = {each.name: None for each in fields(DrillVerdict)}
    preemption = {"worker": 1, "step": 2, "fit": 1, "moment": "step", "sent": "", "killed_after_grace": False}
    told |= {"verdict": "identical", "preemptions": [{**preemption, "weather": "fine"}], "weather": "fine"}
    told |= {"fits": [], "tensors_different": [], "uncovered": ["callbacks"]}
    told = {name: value for name, value in told.items() if name not in ("output", "log", "kept")}
    verdict = running.from_json(told, "said", None, None)
    assert verdict.identical
    assert verdict.preemptions == (DrillPreemption(1, 2, 1, "step", "", False),)
    assert verdict.uncovered == ("callbacks",)
