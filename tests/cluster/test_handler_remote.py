"""A custom loop of a coordinator on remote workers, as on a TPU: others take their place, and the loop goes on."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.cluster.test_tpu import Cloud

LOOP = "handler_remote.py"
STEPS, HOLD = 12, 5


def test_a_loop_that_asks_a_watcher_before_each_step_ends_with_tensorflows_error(tmp_path: Path) -> None:
    with Cloud(tmp_path) as cloud:
        workers, coordinator = cloud.workers(0), cloud.coordinator("watched", script=LOOP)
        coordinator.wait_for_line(0, "^STEPS$")
        workers.signal(1, signal.SIGTERM)
        result = coordinator.wait().assert_ok()
    task = "/job:worker/task:1"
    assert f"PREEMPTED {task} Task {task} was preempted." in result.outputs[0].splitlines()


def test_a_loop_goes_on_in_its_process_on_other_workers_with_the_exact_value(tmp_path: Path) -> None:
    with Cloud(tmp_path) as cloud:
        first, coordinator = cloud.workers(0), cloud.coordinator("handled", script=LOOP)
        coordinator.wait_for_line(0, "HOLDS")
        first.signal(1, signal.SIGTERM)
        coordinator.wait_for_line(0, "^PREEMPTED ")
        first.close()
        cloud.workers(1)
        result = coordinator.wait().assert_ok()
    value = 1.0
    for step in range(STEPS):
        value = value * 0.7 + step
    # The notice came between two steps, so that none more is run.
    ran = [list(range(HOLD)), list(range(HOLD, STEPS))]
    assert f"END {value.hex()} {STEPS} {json.dumps(ran)}" in result.outputs[0].splitlines()
    assert "THREADS []" in result.outputs[0]
    assert "tpu-coordinator on generic" in result.outputs[0]
