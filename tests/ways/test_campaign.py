"""Jobs drawn at random, ended again and again at random places: each ends like an undisturbed run.

``KERAS_PREEMPT_CAMPAIGN=first:count`` chooses other seeds for the long form.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.harness import describe
from tests.cluster.outcome import assert_identical
from tests.ways.catalogue.drawn import draw, way
from tests.ways.drill import PREEMPTED, Job, steps_of

_FIRST, _COUNT = (int(part) for part in os.environ.get("KERAS_PREEMPT_CAMPAIGN", "0:120").split(":"))

SHORT = 39
"""The seed that `make test` runs."""


def hold(seed: int, folder: Path) -> None:
    drawn = draw(seed)
    job = Job(folder, way(seed), drawn.strategy, drawn.place)
    undisturbed = job.start("undisturbed").assert_ok()
    results = []
    for strike in drawn.strikes:
        result = job.start("preempted", strike=strike)
        results.append(result)
        if result.codes == [0] * job.workers:
            break  # The place does not come any more.
        expected = -9 if "SIGKILL" in strike else PREEMPTED
        assert result.codes == [expected] * job.workers, f"{drawn}\n{describe(result.outputs)}"
    else:
        results.append(job.start("preempted").assert_ok())
    for result in results:
        assert not any("NOT exact" in output for output in result.outputs), describe(result.outputs)
    for worker in range(job.workers):
        # A step that is run again after a kill has the same result; what comes after it is not otherwise.
        assert sorted(set(steps_of(results, worker))) == sorted(set(steps_of([undisturbed], worker))), drawn
    assert_identical(job.output("undisturbed"), job.output("preempted"), job.workers)


def test_a_job_drawn_at_random_is_exact(tmp_path: Path) -> None:
    hold(SHORT, tmp_path)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(_FIRST, _FIRST + _COUNT))
def test_many_jobs_drawn_at_random_are_exact(seed: int, tmp_path: Path) -> None:
    hold(seed, tmp_path)
