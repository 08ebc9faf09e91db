"""Forked workers are processes like any other: what they end with, what reaches them, what they leave."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import pytest

from tests.cluster.harness import start_cluster


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(
        """
import os, random, sys, tensorflow
what = sys.argv[1]
print(what, os.environ.get("WHO"), random.random(), flush=True)
if what == "code":
    sys.exit(7)
if what == "error":
    raise RuntimeError("on purpose")
if what == "wait":
    if os.fork() == 0:
        print("child", os.getpid(), flush=True)
    while True:
        __import__("signal").pause()
"""
    )
    return path


@pytest.mark.parametrize(("what", "code"), [("end", 0), ("code", 7), ("error", 1)])
def test_ends_with_the_code_of_the_script(script: Path, what: str, code: int) -> None:
    with start_cluster(script, 1, args=[what]) as running:
        result = running.wait(60.0).assert_codes(code)
    assert ("RuntimeError: on purpose" in result.outputs[0]) == (what == "error")


def test_a_signal_ends_it_and_what_it_has_started(script: Path) -> None:
    with start_cluster(script, 2, args=["wait"]) as running:
        children = [int(running.wait_for_line(w, r"^child \d+").split()[1]) for w in (0, 1)]
        ends = [os.pidfd_open(child) for child in children]
        assert os.getpgid(running.cluster.pids[0]) == running.cluster.pids[0]
        running.signal(0, signal.SIGKILL)
        running.signal(1, signal.SIGTERM)
        running.wait(60.0).assert_codes(-signal.SIGKILL, -signal.SIGTERM)
    for end in ends:
        assert select.select([end], [], [], 30.0)[0], "a child of a job lives on"
        os.close(end)


def test_each_has_its_own_environment_and_luck(script: Path) -> None:
    with start_cluster(script, 2, args=["end"], per_worker_env={0: {"WHO": "a"}, 1: {"WHO": "b"}}) as running:
        lines = [output.splitlines()[-1].split() for output in running.wait(60.0).assert_ok().outputs]
    assert [line[1] for line in lines] == ["a", "b"]
    assert lines[0][2] != lines[1][2]
    assert "WHO" not in os.environ


def test_closing_ends_it(script: Path) -> None:
    with start_cluster(script, 1, args=["wait"]) as running:
        running.wait_for_line(0, "^child")
        (pid,) = running.cluster.pids
    assert [exit.code for exit in running.cluster.exits] == [-signal.SIGKILL]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
