"""The host prepares the next step while the device computes; a checkpoint holds what callbacks made of each step."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed", allow_module_level=True)

SCRIPT = Path(__file__).parent / "scripts" / "ahead.py"


def test_fit_does_not_wait_for_a_step_before_it_begins_the_next_one(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "queued" in lines, result.stdout + result.stderr
    # The save in the middle comes when the hook of the last step before it has run.
    assert "ended 0 1 2 3 4" in lines, result.stdout + result.stderr
