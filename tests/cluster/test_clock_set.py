"""The clock of the day is set in a grace period: the last save comes when it would have come, with all that was run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.harness import describe, run_cluster

SCRIPT = Path(__file__).parent / "scripts" / "clock_set.py"
GRACE, HOUR = 12.0, 3600.0
SOME_STEPS = 30  # Far fewer than run in a grace period, and more than in the moment that a call takes.


@pytest.mark.parametrize(
    "jump", [pytest.param(-HOUR, id="back", marks=pytest.mark.chaos), pytest.param(HOUR, id="forward")]
)
def test_a_clock_that_is_set_neither_cuts_the_grace_period_nor_draws_it_out(
    jump: float, tmp_path: Path
) -> None:
    args = [str(tmp_path / "run"), str(jump), str(GRACE)]
    result = run_cluster(SCRIPT, 1, args=args, fresh=True, timeout=240).assert_codes(75)
    said = dict(
        line.split() for line in result.outputs[0].splitlines() if line.startswith(("SET ", "ENDED "))
    )
    ended = int(said["ENDED"])
    assert ended - int(said["SET"]) > SOME_STEPS, describe(result.outputs)
    committed = sorted(path.parent.parent.name for path in (tmp_path / "run").glob("step-*/*/MANIFEST.json"))
    assert committed[-1] == f"step-{ended:08d}"
