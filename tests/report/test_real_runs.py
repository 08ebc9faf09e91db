"""Reports of real trainings with real signals, against their own records and the launcher's clock."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.cluster import RestartPolicy, Supervisor
from keras_preempt.process.environment import DRILL, DRILL_RECORD
from keras_preempt.report.account import Account
from keras_preempt.report.loading import Loader
from keras_preempt.report.worker_run import UNACCOUNTED, UNREPORTED, End
from tests.cluster.harness import QUIET_CPU

SCRIPT = Path(__file__).parent / "scripts" / "train.py"
STEPS = 32


class Job:
    """A training that a launcher starts again until it is done.

    Attributes:
        seconds: From the first start to the last exit, by the launcher's clock.
        report: What the report says.
    """

    def __init__(
        self,
        folder: Path,
        workers: int,
        environment: Callable[[int], dict[str, str | None]],
        *arguments: str,
    ) -> None:
        self._record = folder / "record"
        directory = str(folder / "run")
        command = [sys.executable, str(SCRIPT), str(self._record), directory, *arguments]
        supervisor = Supervisor(
            workers,
            command,
            policy=RestartPolicy(max_failures=1, incarnation_timeout=300.0),
            environment=lambda number: {**QUIET_CPU, **environment(number)},
        )
        began = time.monotonic()
        done = supervisor.run()
        assert done.exit_code == 0, done.summary
        self.seconds = max(exit.at for exit in done.incarnations[-1].exits) - began
        self.report: Account = Loader(open_store(directory)).load()

    def steps_run(self, worker: int) -> list[tuple[int, int]]:
        """The steps that a worker has run, each with the start that ran it, as it wrote them down itself."""
        return [(start, step) for start, step, _ in self.timed_steps(worker)]

    def timed_steps(self, worker: int) -> list[tuple[int, int, float]]:
        """The same, with the time at which each step was done."""
        lines = Path(f"{self._record}.{worker}").read_text().splitlines()
        return [(int(start), int(step), float(at)) for start, step, at in map(str.split, lines)]


@pytest.mark.parametrize(
    ("workers", "before"),
    [
        pytest.param(1, (5,), marks=pytest.mark.chaos),
        pytest.param(2, (5, 19, 28), marks=[pytest.mark.chaos, pytest.mark.timeout(1800)]),
    ],
)
def test_preemptions_are_accounted_for_to_the_second_and_to_the_step(
    workers: int, before: tuple[int, ...], tmp_path: Path
) -> None:
    def preempted(number: int) -> dict[str, str | None]:
        last = number >= len(before)
        return {DRILL: None if last else json.dumps({"member": 0, "step": before[number]})}

    job = Job(tmp_path, workers, preempted)
    found = job.report
    assert [start.end for start in found.starts] == [*[End.PREEMPTED] * len(before), End.FINISHED]
    assert len(found.workers) == workers
    for worker in found.workers:
        assert worker.wall == pytest.approx(job.seconds, rel=0.02)
        named = sum(span.seconds for span in worker.spans if span.what not in (UNACCOUNTED, UNREPORTED))
        assert named == pytest.approx(worker.wall, rel=0.02)
        run = job.steps_run(worker.member)
        counts = Counter(start for start, _ in run)
        assert list(counts.values()) == [start.steps_run for start in found.starts]
        assert found.lost == len(run) - len({step for _, step in run}) == 0
    assert found.lost_exactly
    assert (found.step, found.steps_run) == (STEPS, STEPS)
    assert [notice.incarnation for notice in found.notices] == list(range(1, 1 + len(before)))
    assert found.gaps == ()


def test_goodput_and_badput_of_a_run_that_was_killed_preempted_and_restarted_are_its_wall_time(
    tmp_path: Path,
) -> None:
    (tmp_path / "steps").mkdir()

    def happens(number: int) -> dict[str, str | None]:
        preempted = json.dumps({"member": 0, "step": 20}) if number == 1 else None
        return {"KILL": "13", DRILL: preempted, DRILL_RECORD: str(tmp_path / "steps")}

    job = Job(tmp_path, 1, happens, "5")
    found = job.report
    assert [start.end for start in found.starts] == [End.KILLED, End.PREEMPTED, End.FINISHED]
    assert found.productive + sum(found.badput.values()) == found.wall
    assert found.wall == pytest.approx(job.seconds, rel=0.02)
    assert found.badput["unknown"] == 0.0
    steps = job.timed_steps(0)
    runs = [[(step, at) for start, step, at in steps if start == number] for number in (1, 2, 3)]
    assert [start.steps_run for start in found.starts] == [len(run) for run in runs]
    kept = runs[1][0][0] - 1
    assert [start.lost for start in found.starts] == [13 - kept, 0, 0]
    assert found.lost_exactly
    # From the end of the last step to that of the first one after the restart, by the script's own clock.
    again = runs[0][-1][1] - runs[0][kept - 1][1]
    for start, before, after, more in zip(found.starts, runs, runs[1:], (again, 0.0), strict=False):
        assert start.lost_seconds == pytest.approx(after[0][1] - before[-1][1] + more, rel=0.05)


@pytest.mark.chaos
@pytest.mark.parametrize("recorded", [True, False])
def test_a_kill_without_notice_loses_what_the_record_says_or_a_number_within_bounds(
    recorded: bool, tmp_path: Path
) -> None:
    (tmp_path / "steps").mkdir()

    def killed(number: int) -> dict[str, str | None]:
        return {"KILL": "13", DRILL_RECORD: str(tmp_path / "steps") if recorded else None}

    job = Job(tmp_path, 1, killed, "5")
    run = job.steps_run(0)
    again = len(run) - len({step for _, step in run})
    assert again > 0
    assert job.report.starts[0].end is End.KILLED
    assert job.report.lost_exactly is recorded
    assert job.report.lost == again if recorded else job.report.lost <= again
    assert job.report.lost_at_most is not None
    assert again <= job.report.lost_at_most <= (again if recorded else 2 * 5)
    assert job.report.workers[0].wall == pytest.approx(job.seconds, rel=0.02)
