"""A signal that comes while a preempted process ends, for instance from a scheduler that repeats itself."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.cluster.harness import start_cluster
from tests.cluster.training import SCRIPT


@pytest.mark.parametrize("workers", [1, 2])
def test_the_status_of_a_preempted_process_outlives_further_signals(tmp_path: Path, workers: int) -> None:
    args = [str(tmp_path / "output"), str(tmp_path / "run"), "--marks", "--slow", "0.05"]
    args += ["--strategy", "mwms"] if workers > 1 else []
    with start_cluster(SCRIPT, workers, args=args) as running:
        running.wait_for_line(0, "^AT batch 0 1")
        running.signal(0, signal.SIGTERM)
        running.wait_for_line(0, "Preempted: exiting with status 75")
        limit = time.monotonic() + 60
        while any(running.signal(worker, signal.SIGTERM) for worker in range(workers)):
            assert time.monotonic() < limit
            time.sleep(0.005)  # As many as find it: at whatever its process does by then.
        running.wait(60).assert_codes(75)
