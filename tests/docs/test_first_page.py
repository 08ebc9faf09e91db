"""README.md and the documentation's first page, as a new user follows them: an empty folder, a script, commands."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from keras_preempt.cli.main import main
from keras_preempt.cluster import supervisor
from tests.cluster.forked import QUIET_CPU, ForkedCluster
from tests.docs.commands import commands_of
from tests.docs.pages import Block, all_blocks
from tests.docs.shown import assert_lines, assert_shown


def blocks_on(page: str) -> list[Block]:
    """The blocks of a page, in order."""
    return [block for block in all_blocks() if block.where.startswith(f"{page}:")]


@pytest.mark.parametrize(
    "page",
    [pytest.param("README.md", marks=pytest.mark.docs), pytest.param("index.md", marks=pytest.mark.chaos)],
)
def test_first_page_leads_to_a_passed_drill_and_a_report(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in QUIET_CPU.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if os.environ.get("KERAS_PREEMPT_FRESH_PROCESSES") != "1":
        monkeypatch.setattr(supervisor, "LocalCluster", ForkedCluster)
    (script,) = [block.code for block in blocks_on(page) if block.notes.get("file") == "train.py"]
    Path("train.py").write_text(script)
    typed = [
        command
        for block in blocks_on(page)
        if block.language == "sh" and "not run" not in block.notes
        for command in commands_of(block)
    ]
    assert [command.of_keras_preempt for command in typed][:1] == ["drill"]
    printed = ""
    for command in typed:
        status = main(command.words[1:])
        captured = capsys.readouterr()
        assert status == 0, (
            f"{shlex.join(command.words)}: exit status {status}\n{captured.out}\n{captured.err}"
        )
        printed += captured.out
    (shown,) = [block for block in blocks_on(page) if block.notes.get("output of") == "first page"]
    assert_lines(shown, printed, in_order=False)
    assert_shown("first page", printed)
