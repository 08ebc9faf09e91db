"""Drills and runs on the pages, really trained: the first page's as a new user follows it, and each by itself."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from keras_preempt.cluster import supervisor
from keras_preempt.testing import FakeGcs
from tests.cli.launched import called, command_line
from tests.cluster.forked import QUIET_CPU, ForkedCluster
from tests.docs.commands import SHELLS, Command, commands_of
from tests.docs.pages import ROOT, all_blocks, files
from tests.docs.shown import assert_lines, assert_shown

#: As in a shell in which the package is installed.
ENVIRONMENT = {**QUIET_CPU, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize(
    "page",
    [pytest.param("README.md", marks=pytest.mark.docs), pytest.param("index.md", marks=pytest.mark.chaos)],
)
def test_first_page_leads_to_a_passed_drill_and_a_report(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """README.md and the documentation's first page: an empty folder, a script, commands."""
    monkeypatch.chdir(tmp_path)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    if os.environ.get("KERAS_PREEMPT_FRESH_PROCESSES") != "1":
        monkeypatch.setattr(supervisor, "LocalCluster", ForkedCluster)
    blocks = [block for block in all_blocks() if block.where.startswith(f"{page}:")]
    (script,) = [block.code for block in blocks if block.notes.get("file") == "train.py"]
    Path("train.py").write_text(script)
    typed = [
        command
        for block in blocks
        if block.language == "sh" and "not run" not in block.notes
        for command in commands_of(block)
    ]
    assert [command.of_keras_preempt for command in typed][:1] == ["drill"]
    printed = ""
    for command in typed:
        done = called(*command.words[1:])
        assert done.returncode == 0, f"{shlex.join(command.words)}\n{done}"
        printed += done.stdout
    (shown,) = [block for block in blocks if block.notes.get("output of") == "first page"]
    assert_lines(shown, printed, in_order=False)
    assert_shown("first page", printed)


# Each once, though several pages may have it.
COMMANDS = {
    " ".join(command.words[1:]): command
    for block in all_blocks()
    if block.language in SHELLS
    for command in commands_of(block)
    if command.of_keras_preempt in ("drill", "run")
}

# The script of the first page trains on one device; this one, from the examples, on as many workers as there are.
ON_WORKERS = f"""
import runpy, sys
sys.argv = ["digits.py", "runs/1", "--epochs", "3"]
runpy.run_path({str(ROOT / "examples" / "digits.py")!r}, run_name="__main__")
"""


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_drill_and_run_on_the_pages_ends_well(command: Command, tmp_path: Path) -> None:
    script = ON_WORKERS if "--workers" in command.words else files()["train.py"]
    (tmp_path / "train.py").write_text(script)
    line = command_line(*command.words[1:])
    with FakeGcs(buckets=("bucket",)) as gcs:
        env = {**os.environ, **ENVIRONMENT, **gcs.environment()}
        done = subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
