"""`make slurm` on a machine without Slurm: one line that says what to install, and no failure."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.slurm.daemons import PROGRAMS

ROOT = Path(__file__).parents[2]


def make_slurm(path: Path, arguments: str = "") -> subprocess.CompletedProcess[str]:
    """Runs the command as make would, where only the programs of a folder are found."""
    recipe = re.search(r"^slurm:.*\n\t(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    command = recipe[1].replace("$$PATH:/usr/sbin", str(path)).replace("$(BIN)/python", sys.executable)
    return subprocess.run(
        ["/bin/sh", "-c", command.replace("$(PYTEST_ARGS)", arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_says_in_one_line_what_to_install(tmp_path: Path) -> None:
    done = make_slurm(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert line == (
        f"Skipped: Slurm is not installed (no {', '.join(PROGRAMS)}): "
        "apt-get update && apt-get install -y slurm-wlm munge"
    )


def test_with_its_programs_the_tests_begin(tmp_path: Path) -> None:
    for name in PROGRAMS:
        (tmp_path / name).touch(mode=0o755)
    done = make_slurm(tmp_path, "--collect-only -q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tests/slurm/test_training.py::" in done.stdout
