"""Notices that come while a restart is still on its way to its first step lose nothing.

| the signal comes | to |
|---|---|
| before a worker reads the checkpoint | 1 |
| after it has read it | 0 |
| while another worker still reads (it is stopped there) | 0 |
| before the callback listens | 1 |
| from outside, in mid-epoch | 1 |
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

from keras_preempt.checkpoint.failpoints import VARIABLE
from tests.cluster.harness import start_cluster
from tests.cluster.training import PREEMPTED, SCRIPT, Strike, Training, Undisturbed

STOPPED = "T"


def _wait_until_stopped(pid: int, timeout: float = 120.0) -> None:
    limit = time.monotonic() + timeout
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != STOPPED:
        assert time.monotonic() < limit, f"process {pid} was not stopped"
        time.sleep(0.05)  # Somebody else's process: there is nothing to wait on.


def test_a_notice_while_a_restart_restores_loses_nothing(tmp_path: Path, undisturbed: Undisturbed) -> None:
    training = Training(tmp_path, 2)
    with start_cluster(SCRIPT, 2, args=[*training.command, "--slow", "0.1"]) as running:
        running.wait_for_line(1, "AT done 0 3")
        running.signal(1, signal.SIGTERM)
        training.results.append(running.wait().assert_codes(PREEMPTED))
    done = len(training.steps(0))
    assert done < 24

    for worker, point in ((1, "restore.before-read"), (0, "restore.after-read")):
        training.preempt(per_worker_env={worker: {VARIABLE: f"{point}=sigterm"}})

    stop = {1: {VARIABLE: "restore.after-read=stop"}}
    with start_cluster(SCRIPT, 2, args=training.command, per_worker_env=stop) as running:
        _wait_until_stopped(running.cluster.pids[1])
        running.signal(0, signal.SIGTERM)
        running.signal(1, signal.SIGCONT)
        training.results.append(running.wait().assert_codes(PREEMPTED))
    assert len(training.steps(0)) == done

    training.preempt(Strike("train_begin", (1,), settle=False))
    training.finish()
    training.assert_same(undisturbed(2))
