"""The grace countdown of real runtimes with their threads, over keys in memory and with grace of a second."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest

from keras_preempt.agreement import grace
from keras_preempt.agreement.alignment import Kind
from keras_preempt.notices import Notice
from keras_preempt.training import pace
from tests.training.runtime_job import Job, Worker, short_rounds


@pytest.fixture(autouse=True)
def _leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(grace.reserve, "__defaults__", (0.05,))
    monkeypatch.setattr(grace.has_room, "__defaults__", (0.05,))
    monkeypatch.setattr(pace, "FIRST_SAVE", 0.0)
    monkeypatch.setattr(pace, "FIRST_ALIGNMENT", 0.01)
    with short_rounds(monkeypatch):
        yield


def ends_in(seconds: float, member: int = 0, id: str = "") -> Notice:
    now = time.time()
    return Notice("azure", f"event {id} of {member}", now, now + seconds, id=id)


def roomy(worker: Worker) -> None:
    """Forgets how long the test has kept the worker in its step."""
    worker.runtime.pace.leave(worker.runtime.entered)


def kinds(worker: Worker) -> list[Kind]:
    return [plan.kind for _, plan in worker.acted]


def first_save(job: Job, notified: int = 0, seconds: float = 60.0, id: str = "") -> None:
    """Brings everyone past the save at the notice."""
    for worker in job.workers:
        roomy(worker)
    job.workers[notified].runtime.notify(ends_in(seconds, notified, id))
    job.service.await_key("/0/plan")
    for worker in job.workers:
        worker.stand_in(4)
    assert [plan.goes_on for worker in job.workers for _, plan in worker.acted] == [True] * len(job.workers)


def test_with_time_left_all_save_train_on_and_save_again_before_the_deadline() -> None:
    with Job(2) as job:
        job.stand_in(1, 2)
        roomy(job.workers[0])
        job.workers[0].runtime.notify(ends_in(0.9))
        job.service.await_key("/0/plan")
        for worker in job.workers:
            worker.stand_in(5)
        job.service.await_key("/1/plan")  # The countdown has called.
        job.end()
        assert [[steps for steps, _ in worker.acted] for worker in job.workers] == [[3, 6], [3, 6]]
        assert kinds(job.workers[1]) == [Kind.PREEMPTED, Kind.DEADLINE]
        assert all(plan.doomed == (0,) for worker in job.workers for _, plan in worker.acted)
        assert not any(worker.finished for worker in job.workers)


def test_a_notice_without_time_saves_once_and_leaves() -> None:
    with Job(2) as job:
        job.stand_in(1, 1)
        job.workers[0].runtime.notify(ends_in(0.05))
        job.service.await_key("/0/plan")
        job.end()
        assert [kinds(worker) for worker in job.workers] == [[Kind.PREEMPTED]] * 2
        assert not any(worker.finished for worker in job.workers)


def test_a_later_notice_with_an_earlier_deadline_calls_at_once() -> None:
    with Job(2) as job:
        job.stand_in(1, 1)
        first_save(job)
        job.workers[0].runtime.notify(ends_in(0.0, id="another"))
        job.service.await_key("/1/plan")
        job.end()
        assert kinds(job.workers[0]) == [Kind.PREEMPTED, Kind.DEADLINE]


def test_the_earliest_deadline_of_several_workers_under_notice_decides() -> None:
    with Job(3) as job:
        job.stand_in(1, 1, 1)
        first_save(job)
        roomy(job.workers[2])
        job.workers[2].runtime.notify(ends_in(0.9, member=2))
        job.service.await_key("/1/plan")
        for worker in job.workers:
            worker.stand_in(6)
        job.service.await_key("/2/plan")
        job.end()
        assert kinds(job.workers[1]) == [Kind.PREEMPTED, Kind.PREEMPTED, Kind.DEADLINE]
        assert job.workers[1].acted[-1][1].doomed == (0, 2)


def test_after_a_notice_is_withdrawn_training_runs_to_its_end() -> None:
    with Job(2) as job:
        job.stand_in(1, 1)
        first_save(job, seconds=5)
        job.workers[0].runtime.withdraw(ends_in(5))
        assert not job.workers[0].runtime._delegate.member.standing
        assert not job.workers[0].runtime.attention
        job.end()
        assert all(worker.finished for worker in job.workers)
        assert kinds(job.workers[0]) == [Kind.PREEMPTED, Kind.FINISHED]
        assert job.workers[0].told("withdrawn")


def test_a_notice_that_is_withdrawn_before_the_start_calls_nobody() -> None:
    with Job(1) as job:
        runtime = job.workers[0].runtime
        runtime.notify(ends_in(60))
        runtime.withdraw(ends_in(60))
        job.start()
        job.end()
        assert kinds(job.workers[0]) == [Kind.FINISHED]


def test_a_second_notice_after_a_withdrawn_one_starts_over() -> None:
    with Job(1) as job:
        job.stand_in(1)
        first_save(job, id="a")
        job.workers[0].runtime.withdraw(ends_in(60, id="a"))
        roomy(job.workers[0])
        job.workers[0].runtime.notify(ends_in(0.0, id="b"))
        job.service.await_key("/1/plan")
        job.end()
        assert kinds(job.workers[0]) == [Kind.PREEMPTED, Kind.PREEMPTED]
        assert [plan.goes_on for _, plan in job.workers[0].acted] == [True, False]


def test_a_second_signal_during_the_countdown_holds_nobody() -> None:
    with Job(2) as job:
        job.stand_in(1, 1)
        first_save(job)
        job.workers[0].runtime.notify(ends_in(60))
        job.workers[0].runtime.expect()  # The handler comes after the notice, as it may.
        job.end()
        assert all(worker.finished for worker in job.workers)


def test_training_that_ends_within_the_grace_period_is_finished() -> None:
    with Job(2) as job:
        job.stand_in(1, 1)
        first_save(job, seconds=600)
        job.end()
        assert [kinds(worker) for worker in job.workers] == [[Kind.PREEMPTED, Kind.FINISHED]] * 2


def test_a_hint_saves_and_ends_nothing() -> None:
    with Job(2) as job:
        job.stand_in(1, 1)
        job.workers[0].runtime.notify(Notice("aws", "rebalance", time.time(), hint=True))
        job.service.await_key("/0/plan")
        job.end()
        assert [kinds(worker) for worker in job.workers] == [[Kind.PERIODIC, Kind.FINISHED]] * 2
        assert not job.workers[0].runtime._delegate.member.standing


def test_storage_is_told_when_this_machine_will_be_gone() -> None:
    with Job(1) as job:
        job.stand_in(1)
        told: list[float | None] = []
        job.workers[0].runtime._on_end_known = told.append
        event = ends_in(60)
        job.workers[0].runtime.notify(event)
        job.workers[0].runtime.withdraw(event)
        job.end()
        assert told == [event.ends_at, None]


def test_a_step_that_cannot_end_in_time_is_reported_at_once(caplog: pytest.LogCaptureFixture) -> None:
    with Job(1) as job:
        job.stand_in(1)
        job.workers[0].runtime.pace.paused(100.0)
        job.workers[0].runtime.at_risk = lambda: "all since step 7"
        job.workers[0].runtime.notify(ends_in(10.0))
        job.service.await_key("/0/plan")
        job.end()
        (error,) = [record.message for record in caplog.records if record.levelno == logging.ERROR]
        assert "comes too late" in error
        assert "all since step 7" in error


def test_a_fit_that_is_closed_during_the_countdown_ends_it() -> None:
    with Job(1) as job:
        job.stand_in(1)
        first_save(job)
        job.workers[0].runtime.close("an exception")
        job.end()
