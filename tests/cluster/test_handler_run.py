"""A custom loop under `keras-preempt run`: started again after a preemption, and after the loss of a worker."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from keras_preempt.cluster import Outcome, RestartPolicy, Supervisor, supervisor
from tests.cluster.forked import QUIET_CPU, ForkedCluster
from tests.cluster.test_handler_workers import value_after

SCRIPT = Path(__file__).parent / "scripts" / "handler_run.py"
STEPS = 12


def test_a_loop_is_started_again_until_it_ends_with_the_exact_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LocalCluster", ForkedCluster)
    lines: list[str] = []
    said: list[str] = []
    report = Supervisor(
        2,
        [sys.executable, str(SCRIPT), str(tmp_path / "run")],
        say=said.append,
        log=lambda index, line: lines.append(f"w{index} {line}"),
        policy=RestartPolicy(incarnation_timeout=150),
        environment=lambda incarnation: QUIET_CPU,
    ).run()
    shown = "\n".join([*lines, *said])
    assert report.exit_code == 0, shown
    outcomes = [incarnation.verdict.outcome for incarnation in report.incarnations]
    assert outcomes == [Outcome.PREEMPTED, Outcome.FAILED, Outcome.FINISHED], shown
    # The notice to worker 1 came in step 4, and worker 0 may have begun step 5 before it heard of that; the death of
    # worker 0 costs what was not saved.
    saved = [incarnation.safe_step for incarnation in report.incarnations][:2]
    assert saved in ([5, 5], [6, 6]), shown
    ran = [json.loads(line.removeprefix("w1 RAN ")) for line in lines if line.startswith("w1 RAN ")]
    assert ran == [list(range(saved[0])), list(range(saved[0], 8)), list(range(saved[0], STEPS))]
    value = value_after(STEPS, 2).hex()
    assert [line for line in lines if "VALUE" in line].count(f"w0 VALUE {value}") == 1
    assert any("there is a checkpoint to go on from" in line for line in said)
    assert "Exception ignored" not in shown
