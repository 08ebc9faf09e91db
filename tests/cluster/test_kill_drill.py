"""The drill on two real workers: killed without a notice, struck in a validation and in the middle of a save."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.harness import QUIET_CPU

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "train.py"


def drill(folder: Path, *options: str, script_args: tuple[str, ...]) -> str:
    """Drills the script on two workers; returns what was printed. Fails unless every bit was the same."""
    temporary = folder / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "keras_preempt.cli.main", "drill", "--workers", "2", "--timeout", "900"]
    command += [*options, "--", sys.executable, str(SCRIPT), str(folder / "output"), "unused"]
    command += ["--strategy", "mwms", *script_args]
    env = {**os.environ, **QUIET_CPU, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    assert list(temporary.iterdir()) == []
    return done.stdout


@pytest.mark.chaos
def test_a_worker_that_is_killed_takes_the_other_with_it_and_both_go_on_from_the_last_checkpoint(
    tmp_path: Path,
) -> None:
    output = drill(
        tmp_path, "--kill", "--at", "step:5", "--at", "saving:2", "--seed", "3", "--save-every", "4",
        script_args=("--epochs", "2"),
    )  # fmt: skip
    assert output.count("was killed as planned; the newest checkpoint is of step") == 2
    assert re.search(r"w\d was killed \(SIGKILL\)", output)
    # The other one is told apart: it lost its peer, by itself or with the launcher's help.
    assert re.search(
        r"w\d (has lost another worker|failed .*: a consequence|was ended by the launcher)", output
    )
    last = output.splitlines()[-1]
    assert re.match(r"VERDICT: identical .* [1-9]\d* steps? run again", last), last


@pytest.mark.chaos
def test_moments_of_ones_own_leave_the_same_bits(tmp_path: Path) -> None:
    output = drill(
        tmp_path, "--at", "validation", "--at", "saving", "--at", "leaving:15", "--preempt", "1",
        "--seed", "4", "--save-every", "4",
        script_args=("--epochs", "3"),
    )  # fmt: skip
    last = output.splitlines()[-1]
    assert re.match(r"VERDICT: identical .*4 preemptions.*; 0 steps lost", last), last
