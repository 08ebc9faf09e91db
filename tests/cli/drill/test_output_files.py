"""The file that a drill itself writes into is not the script's."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.drill.test_command import ENVIRONMENT

DRILL = shlex.join([sys.executable, "-m", "keras_preempt.cli.main", "drill", "--at", "step:4", "--"])
TRAIN = shlex.join([sys.executable, str(Path(__file__).with_name("fake_training.py"))])


@pytest.mark.parametrize("into", ["> drill.log 2>&1", "2>&1 | tee drill.log"])
def test_the_output_of_the_drill_is_not_taken_for_a_file_of_the_script(into: str, tmp_path: Path) -> None:
    env = {**ENVIRONMENT, "FAKE_FAULT": "writes"}
    done = subprocess.run(
        f"{DRILL} {TRAIN} {into}",
        shell=True,
        cwd=tmp_path,
        env=env,
        capture_output=True,
        timeout=300,
        check=False,
    )
    printed = (tmp_path / "drill.log").read_text()
    assert done.returncode == 0, printed
    assert "VERDICT: identical" in printed
    assert "the script also wrote log.csv here" in printed
