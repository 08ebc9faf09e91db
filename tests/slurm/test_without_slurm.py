"""`make slurm` on a machine without Slurm: one line that says what to install, and no failure."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.slurm.daemons import PROGRAMS

ROOT = Path(__file__).parents[2]


def test_says_in_one_line_what_to_install(tmp_path: Path) -> None:
    recipe = re.search(r"^slurm:.*\n\t(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    # As make would run it, but no program is found.
    command = recipe[1].replace("$$PATH:/usr/sbin", str(tmp_path)).replace("$(BIN)/python", sys.executable)
    done = subprocess.run(
        ["/bin/sh", "-c", command.replace("$(PYTEST_ARGS)", "")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert line == (
        f"Skipped: Slurm is not installed (no {', '.join(PROGRAMS)}): "
        "apt-get update && apt-get install -y slurm-wlm munge"
    )
