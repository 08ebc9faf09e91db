"""The classes of variables that TPUStrategy makes, captured and restored: all of it that CPU devices can have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "tpu_variables.py"
CLASSES = {
    "no policy": ["TPUMirroredVariable", "TPUSyncOnReadVariable"],
    "policy": ["TPUDistributedVariable"],
    "lazy": ["TPULazyDistributedVariable"],
}


@pytest.mark.parametrize(
    "policy", ["no policy", *(pytest.param(name, marks=pytest.mark.chaos) for name in ("policy", "lazy"))]
)
def test_a_fit_on_variables_of_tpu_strategy_s_classes_is_resumed_exactly(policy: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), policy],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    # BatchNormalization's moving statistics and the metrics are each replica's own.
    assert found.pop("variables that differ between replicas") > 0
    assert found == {"classes": CLASSES[policy], "preempted": True, "history": True, "bits": True}
