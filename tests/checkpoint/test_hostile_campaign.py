"""Thousands of changed checkpoints: what is read is what was written, or it is refused in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("seed", "count"), [(2, 100), *(pytest.param(n, 2000, marks=pytest.mark.chaos) for n in range(2, 8))]
)
def test_changed_checkpoints_are_read_as_written_or_refused_in_one_line_without_tensorflow(
    seed: int, count: int, tmp_path: Path
) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.checkpoint.fuzz_campaign", str(tmp_path), str(seed), str(count)],
        cwd=ROOT,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr[-5000:]}"
    assert f"\n{count} inputs" in run.stdout
    # It tells the one from the other, with right sums and without.
    for outcome in (
        "flip_bits refused",
        "edit_part_list refused",
        "edit_header refused",
        "edit_part_list read",
    ):
        assert outcome in run.stdout
