"""Thousands of changed checkpoints: what is read is what was written, or it is refused in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def campaign(folder: Path, seed: int, count: int) -> str:
    folder.mkdir()
    run = subprocess.run(
        [sys.executable, "-m", "tests.checkpoint.fuzz_campaign", str(folder), str(seed), str(count)],
        cwd=ROOT,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr[-5000:]}"
    assert f"\n{count} inputs" in run.stdout
    return run.stdout


def test_changed_checkpoints_are_read_as_written_or_refused_in_one_line_without_tensorflow(
    tmp_path: Path,
) -> None:
    told = campaign(tmp_path / "campaign", seed=2, count=100)
    # It tells the one from the other, with right sums and without.
    for outcome in (
        "flip_bits refused",
        "edit_part_list refused",
        "edit_header refused",
        "edit_part_list read",
    ):
        assert outcome in told


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(2, 8))
def test_twelve_thousand_changed_checkpoints_are_read_as_written_or_refused(
    seed: int, tmp_path: Path
) -> None:
    campaign(tmp_path / "campaign", seed, 2000)
