"""The classes of variables that TPUStrategy makes, captured and restored: all of it that CPU devices can have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.harness import run_cluster

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
    done = run_cluster(SCRIPT, 1, args=[str(tmp_path), policy], timeout=500).assert_ok()
    found = json.loads(done.outputs[0].splitlines()[-1])
    # BatchNormalization's moving statistics and the metrics are each replica's own.
    assert found.pop("variables that differ between replicas") > 0
    assert found == {"classes": CLASSES[policy], "preempted": True, "history": True, "bits": True}
