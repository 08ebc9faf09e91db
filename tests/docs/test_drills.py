"""Every drill and every run on the pages, really trained, in fresh processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_preempt.testing import FakeGcs
from tests.cluster.forked import QUIET_CPU
from tests.docs.commands import SHELLS, Command, commands_of
from tests.docs.pages import ROOT, all_blocks, files

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
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with FakeGcs(buckets=("bucket",)) as gcs:
        done = subprocess.run(
            [sys.executable, "-m", "keras_preempt.cli.main", *command.words[1:]],
            env={**os.environ, **QUIET_CPU, **gcs.environment(), "PATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=1700,
        )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
