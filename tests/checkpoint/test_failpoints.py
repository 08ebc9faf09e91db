from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keras_preempt.checkpoint import failpoints

LOAD = "from keras_preempt.checkpoint import failpoints\n"


PASS_TWICE = """
for _ in range(2):
    print("before", flush=True)
    failpoints.point("save.before-manifest")
print("done")
"""


ON_NOTICE = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: print('notice', flush=True))\n"
ATTEMPT = 'try:\n    failpoints.point("save.before-manifest")\nexcept OSError as error:\n    print(error)\n'
RAISED = "failpoint save.before-manifest was armed to raise by KERAS_PREEMPT_FAILPOINTS\n"


@pytest.mark.parametrize(
    ("variable", "program", "status", "said"),
    [
        (None, PASS_TWICE, 0, "before\nbefore\ndone\n"),
        ("", PASS_TWICE, 0, "before\nbefore\ndone\n"),
        ("save.after-part=kill", PASS_TWICE, 0, "before\nbefore\ndone\n"),
        ("save.after-part=kill, save.before-manifest=kill", PASS_TWICE, -signal.SIGKILL, "before\n"),
        ("save.before-manifest=kill:1", PASS_TWICE, -signal.SIGKILL, "before\n"),
        ("save.before-manifest=kill:2", PASS_TWICE, -signal.SIGKILL, "before\nbefore\n"),
        ("save.before-manifest=raise", f"{ATTEMPT}{ATTEMPT}print('done')", 0, f"{RAISED}done\n"),
        ("save.before-manifest=sigterm", ON_NOTICE + PASS_TWICE, 0, "before\nnotice\nbefore\ndone\n"),
        ("save.nowhere=kill", PASS_TWICE, 1, ""),
    ],
)
def test_a_failpoint_acts_once_at_the_hit_that_was_asked_for_and_a_mistake_shows_at_import(
    variable: str | None, program: str, status: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(failpoints.VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(failpoints.VARIABLE, variable)
    command = [sys.executable, "-c", LOAD + program]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (child.returncode, child.stdout) == (status, said), child.stderr
    mistaken = "ValueError: Expected KERAS_PREEMPT_FAILPOINTS to name points" in child.stderr
    assert mistaken == (status == 1)


def test_stop_holds_the_process_until_it_is_continued() -> None:
    environment = {**os.environ, failpoints.VARIABLE: "save.before-manifest=stop"}
    command = [sys.executable, "-c", LOAD + PASS_TWICE]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as child:
        try:
            _, status = os.waitpid(child.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            child.send_signal(signal.SIGCONT)
            assert child.communicate(timeout=60)[0] == b"before\nbefore\ndone\n"
            assert child.returncode == 0
        finally:
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
        failpoints.parse_failpoints(text)
    assert named in str(caught.value)


def test_every_point_that_the_package_passes_is_listed() -> None:
    sources = [path.read_text() for path in Path(failpoints.__file__).parent.rglob("*.py")]
    passed = {name for text in sources for name in re.findall(r'failpoints\.point\("([^"]+)"', text)}
    assert passed == set(failpoints.NAMES)


def test_a_watched_point_calls_its_watcher_until_unwatched() -> None:
    passed: list[str] = []
    failpoints.set_hook("save.after-part", lambda: passed.append("here"))
    failpoints.point("save.before-parts")
    failpoints.point("save.after-part")
    failpoints.clear_hook("save.after-part")
    failpoints.point("save.after-part")
    assert passed == ["here"]
    with pytest.raises(ValueError, match="name of a point"):
        failpoints.set_hook("save.somewhere", lambda: None)
