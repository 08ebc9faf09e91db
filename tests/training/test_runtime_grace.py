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
from tests.training.runtime_job import Job, Worker, bounded_rounds, give_up_after


@pytest.fixture(autouse=True)
def _leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(grace.reserve, "__defaults__", (0.05,))
    monkeypatch.setattr(grace.has_room, "__defaults__", (0.05,))
    monkeypatch.setattr(pace, "FIRST_SAVE", 0.0)
    monkeypatch.setattr(pace, "FIRST_ALIGNMENT", 0.01)
    with bounded_rounds(monkeypatch):
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


def test_a_notice_that_is_withdrawn_before_the_start_calls_nobody_and_storage_is_told_when_the_machine_goes() -> (
    None
):
    with Job(1) as job:
        runtime = job.workers[0].runtime
        runtime.expect()
        assert not runtime.attention  # A signal before the start holds nobody either.
        told: list[float | None] = []
        runtime._on_end_known = told.append
        event = ends_in(60)
        runtime.notify(event)
        runtime.withdraw(event)
        job.start()
        job.end()
        assert told == [event.ends_at, None]
        assert kinds(job.workers[0]) == [Kind.FINISHED]


def test_training_that_ends_within_the_grace_period_is_finished_whatever_signal_comes_again() -> None:
    with Job(2) as job:
        job.stand_in(1, 1)
        first_save(job, seconds=600)
        job.workers[0].runtime.notify(ends_in(60))
        job.workers[0].runtime.expect()  # The handler comes after the notice, as it may.
        job.end()
        assert all(worker.finished for worker in job.workers)
        assert [kinds(worker) for worker in job.workers] == [[Kind.PREEMPTED, Kind.FINISHED]] * 2


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


def test_a_fit_that_is_closed_during_the_countdown_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with Job(1) as job:
        job.stand_in(1)
        first_save(job)
        job.workers[0].runtime.close("an exception")
        give_up_after(0.1, monkeypatch)
        job.end()
