"""The host queues a window of steps and no more, whatever the steps return as logs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed", allow_module_level=True)

SCRIPT = Path(__file__).parent / "scripts" / "backlog.py"


@pytest.mark.parametrize("kind", ["arrays", "nested", "numbers and arrays"])
def test_a_step_is_waited_for_before_a_later_one_than_the_window_allows_is_queued(kind: str) -> None:
    result = subprocess.run(
        [sys.executable, str(SCRIPT), kind],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["0", "0", "1", "2", "3"]
