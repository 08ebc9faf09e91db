"""A script knows where it has resumed from, and why training had stopped there."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import pytest

from keras_preempt.checkpoint.layout import step_of
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.cluster import RestartPolicy, Supervisor
from keras_preempt.process.environment import DRILL
from keras_preempt.report import events
from tests.cluster.harness import QUIET_CPU

SCRIPT = Path(__file__).parent / "scripts" / "resumed.py"
STEPS = 6
"""Of an epoch; the script saves every 4 steps, and has 3 epochs."""

NOTICE = json.dumps({"member": 0, "step": 8})
"""The first start gets a notice there; the second one kills itself when the save of step 12 is committed."""


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.chaos)])
def test_a_callback_knows_from_where_and_why_the_same_on_all_workers(workers: int, tmp_path: Path) -> None:
    def environment(number: int) -> dict[str, str | None]:
        return {
            **QUIET_CPU,
            DRILL: NOTICE if number == 0 else None,
            "KILL_AFTER": "12" if number == 1 else None,
        }

    command = [sys.executable, str(SCRIPT), str(tmp_path / "told"), str(tmp_path / "run")]
    policy = RestartPolicy(max_failures=2, incarnation_timeout=300.0)
    done = Supervisor(workers, command, policy=policy, environment=environment).run()
    assert done.exit_code == 0, done.summary
    quiet = Supervisor(workers, command, policy=policy, environment=lambda number: QUIET_CPU)
    assert quiet.run().exit_code == 0, "there was nothing left to train"
    with contextlib.closing(open_store(str(tmp_path / "run"))) as store:
        saved = {
            event["saved"]
            for event in events.read(store)
            if (event["incarnation"], event["event"]) == (1, "exit")
        }
    (checkpoint,) = saved
    step = step_of(checkpoint)
    assert step == 8 or workers > 1, "the next one, if another worker has begun it when the notice comes"
    for worker in range(workers):
        told = [json.loads(line) for line in (tmp_path / f"told.{worker}").read_text().splitlines()]
        assert [(when, resumed and resumed[:3]) for when, resumed in told] == [
            ("made", None),
            ("before", None),  # Listed before the callback, it is called before the workers have agreed.
            ("after", None),
            ("made", None),
            ("before", None),
            ("after", [step, 1, "preempted"]),
            ("made", None),
            ("before", None),
            ("after", [12, 2, "periodic"]),
            ("over", [12, 2, "periodic"]),
            *[
                ("made", None),
                ("before", None),
                ("after", [18, 3, "finished"]),
                ("over", [18, 3, "finished"]),
            ],
        ]
        assert told[5][1][3] == checkpoint
