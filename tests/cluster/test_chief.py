"""A chief beside the workers, as Vertex AI describes its jobs in TF_CONFIG, is a worker like the others."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from keras_preempt.cluster.local import find_free_ports
from keras_preempt.process.exit_codes import EXIT_RESTART
from tests.cluster.harness import run_cluster, start_cluster

SCRIPT = Path(__file__).parents[2] / "examples" / "train_on_cluster.py"


def as_vertex() -> Mapping[int, Mapping[str, str]]:
    chief, worker = (f"127.0.0.1:{port}" for port in find_free_ports(2))
    tasks = [("chief", 0), ("worker", 0)]
    cluster = {"chief": [chief], "worker": [worker]}
    return {
        number: {
            "TF_CONFIG": json.dumps(
                {"cluster": cluster, "task": {"type": job, "index": index}, "environment": "cloud"}
            ),
            "KERAS_PREEMPT_PLATFORM": "vertex",
        }
        for number, (job, index) in enumerate(tasks)
    }


@pytest.mark.chaos
def test_chief_and_worker_are_preempted_together_and_go_on(tmp_path):
    arguments = [str(tmp_path / "run"), "--epochs", "2"]
    with start_cluster(SCRIPT, 2, args=arguments, per_worker_env=as_vertex()) as running:
        running.wait_for_line(0, "Epoch 2/2", timeout=300)
        running.signal(1, signal.SIGTERM)
        first = running.wait(200).assert_codes(EXIT_RESTART)
    assert "SIGTERM: worker 1" in first.outputs[1]
    assert "Platform: vertex" in first.outputs[0]

    second = run_cluster(SCRIPT, 2, args=arguments, per_worker_env=as_vertex(), timeout=300).assert_ok()
    assert "Epoch 1/2" not in second.outputs[0]
    assert "validation accuracy:" in second.outputs[0]
