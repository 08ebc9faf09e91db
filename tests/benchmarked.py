"""Runs a benchmark in a process, for tests, and reads the tables that it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run_benchmark(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs one, given by its name or path."""
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
    )


def rows_of(output: str) -> dict[str, list[str]]:
    """The cells of each row after its title, which ends where two spaces begin."""
    rows = {}
    for line in output.splitlines():
        title, *cells = re.split(r"\s{2,}", line.strip())
        if cells:
            rows[title] = cells
    return rows
