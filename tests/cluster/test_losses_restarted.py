"""``keras-preempt run`` starts all workers again after a loss, and the job ends with the weights of an undisturbed one.

| what happened | test |
|---|---|
| worker 0 frozen for longer than a heartbeat takes | chaos |
| killed while fit builds the model, in a job that has a checkpoint | chaos |
| killed at the end of the first resumed epoch | chaos |
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.forked import QUIET_CPU

SCRIPT = Path(__file__).parent / "scripts" / "lost_again.py"
ROOT = Path(__file__).parents[2]
BOUND = 300.0  # seconds for up to three starts of two workers


def launch(folder: Path, way: str) -> str:
    """Runs the job under the launcher to its end; returns its output."""
    folder.mkdir()
    ended = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "keras_preempt.cli.main",
                "run",
                "--workers",
                "2",
            ),
            *("--", sys.executable, str(SCRIPT), str(folder / "run"), way),
        ],
        env={**os.environ, **QUIET_CPU, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=BOUND,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def ends(output: str) -> set[str]:
    return set(re.findall(r"^\[w\d\] ENDED (\w+)$", output, re.MULTILINE))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    (end,) = ends(launch(tmp_path_factory.mktemp("undisturbed") / "job", "none"))
    return end


@pytest.mark.chaos
@pytest.mark.parametrize(("way", "starts"), [("frozen", 2), ("build", 3), ("resumed", 3)])
def test_all_workers_are_started_again_after_a_loss(
    way: str, starts: int, undisturbed: str, tmp_path: Path
) -> None:
    output = launch(tmp_path / "job", way)
    assert "a worker was lost without a notice, and there is a checkpoint to go on from" in output
    assert f"incarnations={starts} " in output, output
    assert ends(output) == {undisturbed}, output
