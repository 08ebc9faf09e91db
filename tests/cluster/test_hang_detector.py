"""When a job hangs: what a launcher makes of the positions of its workers. The files are real, the clock is not."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, MutableSequence
from pathlib import Path
from typing import Any, cast

import pytest

from keras_preempt.cluster import RestartPolicy
from keras_preempt.cluster.hangs import Hang, HangDetector, Limits
from keras_preempt.process import heartbeat
from keras_preempt.process.heartbeat import Heartbeat, Phase
from tests.cli.launched import called

MINUTE = 60.0
TRAIN, SAVE = Phase.TRAIN, Phase.SAVE


class Job:
    """Workers of which the test moves each one, and a launcher that looks at them once a second."""

    def __init__(self, folder: Path, workers: int, hang: float | str, members: int | None = None) -> None:
        self.now = 0.0
        self.stopped: set[int] = set()
        self.ended: set[int] = set()
        self.limits = Limits(hang)
        self.detector = HangDetector(
            folder, workers, self.limits, lambda worker, beat: worker in self.stopped, lambda: self.now
        )
        paths = [str(folder / heartbeat.beat_file(worker)) for worker in range(workers)]
        self.workers = [Heartbeat(cast(MutableSequence[int], heartbeat._mapped(path))) for path in paths]
        for worker in self.workers:
            worker.begin(workers if members is None else members)

    def step(self, worker: int, steps: int = 1) -> None:
        self.workers[worker].count[0] += steps

    def enter(self, phase: Phase, *workers: int) -> None:
        for worker in workers or range(len(self.workers)):
            self.workers[worker].enter(phase)

    def wait(self, seconds: float) -> Hang | None:
        """Looks until then, or until the job is found to hang."""
        ends = self.now + seconds
        while self.now < ends:
            self.now += 1.0
            if (found := self.detector.look(lambda worker: worker not in self.ended)) is not None:
                return found
        return None


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Any]:
    made = []

    def make(workers: int = 1, hang: float | str = "auto", members: int | None = None) -> Job:
        made.append(Job(tmp_path, workers, hang, members))
        return made[-1]

    yield make
    for each in made:
        each.detector.close()


@pytest.mark.parametrize(
    ("phase", "slowest", "limit"),
    [
        (TRAIN, None, 30 * MINUTE),
        (TRAIN, 1.0, 5 * MINUTE),
        (TRAIN, 2 * MINUTE, 20 * MINUTE),
        (Phase.VALIDATION, 1.0, 5 * MINUTE),
        # What it does once in a while says little about the next time.
        (Phase.START, 1.0, 30 * MINUTE),
        (Phase.COMPILE, 1.0, 30 * MINUTE),
        (Phase.EPOCH, 1.0, 30 * MINUTE),
        (Phase.VALIDATION_START, 1.0, 30 * MINUTE),
        (SAVE, 4 * MINUTE, 40 * MINUTE),
        (Phase.OUTSIDE, 1.0, math.inf),
    ],
)
def test_the_limit_of_a_phase_is_learned(phase: Phase, slowest: float | None, limit: float, job: Any) -> None:
    one = job()
    if slowest is not None:
        one.limits.saw(phase, slowest)
    one.enter(phase)
    found = one.wait(min(limit, 600 * MINUTE) - 2.0)
    assert found is None
    assert (one.wait(10.0) is None) == (limit == math.inf)


def test_a_given_time_holds_everywhere(job: Any) -> None:
    one = job(hang=10.0)
    for phase in Phase:
        one.enter(phase)
        assert one.wait(9.0) is None
        one.step(0)
    found = one.wait(12.0)
    assert found is not None
    assert (found.worker, found.limit) == (0, 10.0)


def test_steps_that_are_seen_to_end_teach_the_limit_also_in_the_next_start(job: Any, tmp_path: Path) -> None:
    one = job()
    one.enter(TRAIN)
    for _ in range(3):
        assert one.wait(MINUTE) is None
        one.step(0)
    assert one.wait(9 * MINUTE) is None
    assert one.wait(2 * MINUTE) is not None
    assert one.limits.of(one.detector.beat(0)) == pytest.approx(10 * MINUTE, rel=0.05)


def test_who_is_behind_is_the_cause_and_as_long_as_it_may_still_be_at_work_nothing_hangs(job: Any) -> None:
    two = job(workers=2)
    two.limits.saw(TRAIN, 1.0)
    two.enter(TRAIN)
    two.step(0, 2)
    two.step(1, 1)
    two.enter(SAVE, 1)  # Worker 0 is in a collective already, and waits for it.
    assert two.wait(29 * MINUTE) is None
    found = two.wait(2 * MINUTE)
    assert found is not None
    assert (found.worker, found.causes, sorted(found.positions)) == (1, (1,), [0, 1])


def test_of_workers_at_the_same_boundary_each_may_still_be_at_work(job: Any) -> None:
    two = job(workers=2)
    two.limits.saw(TRAIN, 1.0)
    two.enter(TRAIN, 0)
    two.enter(SAVE, 1)
    assert two.wait(29 * MINUTE) is None
    assert two.wait(2 * MINUTE).causes == (0, 1)


def test_the_last_step_of_an_epoch_is_behind_what_follows_it(job: Any) -> None:
    two = job(workers=2, hang=10.0)
    for worker in two.workers:
        worker.enter(TRAIN, 0, 1)
    two.step(0, 8)
    two.step(1, 8)
    two.workers[0].enter(Phase.EPOCH, 8)  # Worker 1 is still in the eighth step.
    assert two.wait(15.0).causes == (1,)


def test_of_workers_at_the_same_boundary_the_one_that_was_stopped_is_the_cause(job: Any) -> None:
    two = job(workers=2, hang=10.0)
    two.enter(TRAIN)
    two.stopped.add(1)
    assert two.wait(15.0).causes == (1,)


def test_where_none_is_behind_no_single_one_is_blamed(job: Any) -> None:
    two = job(workers=2, hang=10.0)
    two.enter(TRAIN)
    found = two.wait(15.0)
    assert (found.worker, found.causes) == (None, (0, 1))
    assert sorted(worker for worker, _ in found.to_events()) == [0, 1]


def test_workers_that_train_models_of_their_own_are_judged_one_by_one(job: Any) -> None:
    two = job(workers=2, hang=10.0, members=1)
    two.enter(TRAIN)
    two.step(0, 1000)  # It is further than the other one, which does not wait for it.
    for _ in range(8):
        two.step(1)
        assert two.wait(1.0) is None
    two.step(1)
    found = two.wait(4.0)
    assert found is not None
    assert found.causes == (0,)


def test_a_worker_that_has_ended_hangs_no_more(job: Any) -> None:
    two = job(workers=2, hang=10.0)
    two.ended.update((0, 1))
    assert two.wait(100.0) is None


@pytest.mark.parametrize("hang", ["auto", 10.0])
def test_a_worker_that_has_not_imported_the_package_has_no_limit_that_is_guessed(hang: Any, job: Any) -> None:
    one = job(hang=hang)
    one.workers[0].count[:] = cast(Any, memoryview(bytes(80)).cast("Q"))  # As its launcher has made it.
    assert (one.wait(120 * MINUTE) is None) == (hang == "auto")


def test_time_in_which_the_launcher_did_not_run_does_not_count(job: Any) -> None:
    one = job(hang=10.0)
    for _ in range(4):
        assert one.wait(1.0) is None
        one.now += 3600.0  # Stopped, or asleep with its machine: its workers may have been, too.
    assert one.wait(1.0) is None


def test_whoever_cleans_the_temporary_directory_causes_no_hang(job: Any, tmp_path: Path) -> None:
    one = job(hang=10.0)
    os.unlink(tmp_path / heartbeat.beat_file(0))
    for _ in range(30):
        one.step(0)
        assert one.wait(1.0) is None


@pytest.mark.parametrize("hang", [0, -1.0, 2.9, math.inf, math.nan, True, "10min", "", [5]])
def test_a_hang_that_cannot_be_told_is_refused(hang: Any) -> None:
    with pytest.raises(ValueError, match=r"Expected hang to be 'auto', None, or 3 s or more. Received: "):
        RestartPolicy(hang=hang)


@pytest.mark.parametrize("hang", ["", "never", "10", "0s", "2s", "-5min", "inf", "Auto "])
def test_the_command_refuses_it_before_anything_is_started(hang: str) -> None:
    result = called("run", "--hang", hang, "--", "false")
    assert result.returncode == 2
    refused = "Expected auto, off, or a time of at least 3 s such as '90s', '10min' or '2h'. Received: "
    assert refused in result.stderr
