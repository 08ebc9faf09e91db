"""The documentation's first page, as a new user follows it: an empty folder, a script, and what there is to type."""

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
from tests.docs.pages import all_blocks, files
from tests.docs.shown import assert_shown


def test_first_page_leads_to_a_passed_drill_and_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in QUIET_CPU.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if os.environ.get("KERAS_PREEMPT_FRESH_PROCESSES") != "1":
        monkeypatch.setattr(supervisor, "LocalCluster", ForkedCluster)
    Path("train.py").write_text(files()["train.py"])
    typed = [
        command
        for block in all_blocks()
        if block.where.startswith("index.md:") and block.language == "sh" and "not run" not in block.notes
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
    assert_shown("first page", printed)
