from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keras_preempt.checkpoint import failpoints

FILE = failpoints.__file__
# The module by itself, since importing the package loads TensorFlow.
LOAD = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("failpoints", {FILE!r})
failpoints = importlib.util.module_from_spec(spec)
import sys
sys.modules["failpoints"] = failpoints
spec.loader.exec_module(failpoints)
"""


def run(variable: str | None, program: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != failpoints.VARIABLE}
    if variable is not None:
        environment[failpoints.VARIABLE] = variable
    return subprocess.run(
        [sys.executable, "-c", LOAD + program], env=environment, capture_output=True, text=True, timeout=60
    )


PASS_TWICE = """
for _ in range(2):
    print("before", flush=True)
    failpoints.point("save.before-manifest")
print("done")
"""


@pytest.mark.parametrize("variable", [None, "", "save.after-part=kill"])
def test_a_point_that_is_not_armed_does_nothing(variable: str | None) -> None:
    child = run(variable, PASS_TWICE)
    assert (child.returncode, child.stdout) == (0, "before\nbefore\ndone\n")


@pytest.mark.parametrize(("hit", "passed"), [("", 1), (":1", 1), (":2", 2)])
def test_kill_ends_the_process_at_the_hit_that_was_asked_for(hit: str, passed: int) -> None:
    child = run(f"save.after-part=kill, save.before-manifest=kill{hit}", PASS_TWICE)
    assert (child.returncode, child.stdout) == (-signal.SIGKILL, "before\n" * passed)


def test_raise_is_an_oserror_once() -> None:
    child = run(
        "save.before-manifest=raise",
        """
try:
    failpoints.point("save.before-manifest")
except OSError as error:
    print(error)
failpoints.point("save.before-manifest")
print("done")
""",
    )
    assert child.returncode == 0, child.stderr
    assert (
        child.stdout
        == "failpoint save.before-manifest was armed to raise by KERAS_PREEMPT_FAILPOINTS\ndone\n"
    )


def test_sigterm_reaches_the_handler_and_the_process_goes_on() -> None:
    program = (
        "import signal\nsignal.signal(signal.SIGTERM, lambda *_: print('notice', flush=True))\n" + PASS_TWICE
    )
    child = run("save.before-manifest=sigterm", program)
    assert (child.returncode, child.stdout) == (0, "before\nnotice\nbefore\ndone\n")


def test_stop_holds_the_process_until_it_is_continued() -> None:
    environment = {**os.environ, failpoints.VARIABLE: "save.before-manifest=stop"}
    child = subprocess.Popen(
        [sys.executable, "-c", LOAD + PASS_TWICE], env=environment, stdout=subprocess.PIPE
    )
    try:
        pid, status = os.waitpid(child.pid, os.WUNTRACED)
        assert pid == child.pid
        assert os.WIFSTOPPED(status)
        os.kill(child.pid, signal.SIGCONT)
        output, _ = child.communicate(timeout=60)
        assert output == b"before\nbefore\ndone\n"
        assert child.returncode == 0
    finally:
        if child.poll() is None:
            child.kill()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("save.before-manifest", "save.before-manifest"),
        ("save.before-manifest=", "kill, sigterm, stop, raise"),
        ("save.before-manifest=explode", "'explode'"),
        ("save.before-manifest=kill:", "save.before-manifest=kill:"),
        ("save.before-manifest=kill:0", "kill:0"),
        ("save.before-manifest=kill:-1", "kill:-1"),
        ("save.before-manifest=kill:x", "kill:x"),
        ("save.before-manifest=kill:1:2", "kill:1:2"),
        ("save.nowhere=kill", ", ".join(failpoints.NAMES)),
        ("save.after-part=kill,save.after-part=stop", "twice"),
        ("save.after-part=kill,", "''"),
    ],
)
def test_a_mistake_in_the_variable_is_a_clear_error(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=r"Expected KERAS_PREEMPT_FAILPOINTS .* Received: ") as caught:
        failpoints.parse(text)
    assert named in str(caught.value)


def test_a_mistake_in_the_variable_shows_at_import() -> None:
    child = run("save.nowhere=kill", "print('imported')")
    assert child.returncode == 1
    assert "ValueError: Expected KERAS_PREEMPT_FAILPOINTS to name points" in child.stderr
    assert child.stdout == ""


def test_every_point_that_the_package_passes_is_listed() -> None:
    package = Path(FILE).parent
    passed = set()
    for path in package.rglob("*.py"):
        for piece in path.read_text().split('failpoints.point("')[1:]:
            passed.add(piece.split('"')[0])
    assert passed == set(failpoints.NAMES)


def test_a_watched_point_calls_its_watcher_until_unwatched() -> None:
    passed: list[str] = []
    failpoints.watch("save.after-part", lambda: passed.append("here"))
    failpoints.point("save.before-parts")
    failpoints.point("save.after-part")
    failpoints.unwatch("save.after-part")
    failpoints.point("save.after-part")
    assert passed == ["here"]
    with pytest.raises(ValueError, match="name of a point"):
        failpoints.watch("save.somewhere", lambda: None)
