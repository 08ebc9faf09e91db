"""Runs a benchmark in a process, for tests, and reads the tables that it prints; its modules can be imported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "scripts")]  # As when a benchmark is run.


def run_benchmark(script: str, *arguments: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs one, given by its name or path, and asserts that it fails or does not."""
    result = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *arguments],
        capture_output=True,
        text=True,
        timeout=1200,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
    )
    assert result.returncode == int(fails or "MISSED" in result.stdout), result.stdout + result.stderr
    return result


def rows_of(output: str) -> dict[str, list[str]]:
    """The cells of each row after its title, which ends where two spaces begin."""
    rows = {}
    for line in output.splitlines():
        title, *cells = re.split(r"\s{2,}", line.strip())
        if cells:
            rows[title] = cells
    return rows


def measured(script: str, *arguments: str) -> dict[str, list[str]]:
    """The rows that a benchmark prints which misses no aim."""
    output = run_benchmark(script, *arguments).stdout
    assert "MISSED" not in output, output
    return rows_of(output)
