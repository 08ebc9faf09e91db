"""The rounds of a fit, and its grace countdown: real runtimes with their threads, over keys in memory."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator

import pytest

from keras_preempt.agreement import delegate, grace
from keras_preempt.agreement.messages import Call, Kind
from keras_preempt.notices import Notice
from keras_preempt.notices.time_limit import LimitEnd, TimeLimitNotices
from keras_preempt.training.save import pace
from tests.agreement.memory_coordinator import PATIENCE
from tests.training.runtime_job import Job, Worker, bounded_rounds, give_up_after, notice


@pytest.fixture(autouse=True)
def _leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A grace period of a second is enough for two saves."""
    monkeypatch.setattr(grace.reserve, "__defaults__", (0.05,))
    monkeypatch.setattr(grace.has_room, "__defaults__", (0.05,))
    monkeypatch.setattr(pace, "FIRST_SAVE", 0.0)
    monkeypatch.setattr(pace, "FIRST_ALIGNMENT", 0.01)
    with bounded_rounds(monkeypatch):
        yield


@pytest.mark.parametrize("noticed", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_all_act_at_the_boundary_after_the_furthest_step_whoever_is_noticed(noticed: tuple[int, ...]) -> None:
    with Job(3) as job:
        job.stand_in(3, 5, 4)
        for member in noticed:
            job.workers[member].runtime.notify(notice(member))
        job.service.await_key("/plan")
        assert [worker.trained for worker in job.workers] == [3, 5, 4]  # All are still in that step.
        job.end()
        plans = [plan for worker in job.workers for _, plan in worker.acted]
        assert [[steps for steps, _ in worker.acted] for worker in job.workers] == [[6], [6], [6]]
        assert plans == [plans[0]] * 3
        assert set(plans[0].doomed) <= set(noticed)
        assert set(plans[0].writers) == ({0, 1, 2} - set(plans[0].doomed) or {0, 1, 2})
        assert all(not worker.finished and worker.error is None for worker in job.workers)


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (1, "SIGTERM: this process is about to be ended. It saves before that."),
        (2, "SIGTERM: worker 0 is about to be ended. All workers save at the same step."),
    ],
)
def test_what_a_notice_means_is_told_to_one_process_and_to_several(
    members: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Job(members) as job:
        job.stand_in(*[3] * members)
        job.workers[0].runtime.notify(Notice("signal", "SIGTERM", time.time()))
        job.end()
    assert said in caplog.messages


def test_one_round_serves_all_whose_time_is_nearly_over() -> None:
    """Each looks at its own clock: the others would have everybody save again, a moment later."""
    with Job(3) as job:
        job.stand_in(2, 3, 2)
        now = time.time()
        limits = []
        for worker, left in zip(
            job.workers, (grace.SHORTEST_LEAD - 1, grace.SHORTEST_LEAD + 9, 3600), strict=True
        ):
            end = LimitEnd(now + left, "the limit")
            limits.append(TimeLimitNotices(end, worker.runtime.reserve, worker.runtime.notify))
            worker.runtime.before_answers(limits[-1].called)
        limits[0].start()  # The clock of worker 1 is behind: its own thread has nothing to say yet.
        job.service.await_key("/plan")
        for worker in job.workers:
            worker.let_train(6)
        for worker in job.workers:
            worker.await_doing("step 6")
        for limit in limits:
            limit.stop()
        job.end()
        first, last = job.workers[2].acted
        assert (first[1].kind, first[1].goes_on, first[1].doomed) == (Kind.PREEMPTED, True, (0, 1))
        assert last[1].kind is Kind.FINISHED
        assert [len(worker.told("notice")) for worker in job.workers] == [1, 1, 0]


def test_no_step_begins_once_a_notice_is_expected() -> None:
    with Job(2) as job:
        job.stand_in(2, 2)
        release = job.service.hold_back("put", lambda member, key: member == 0 and key.endswith("/call"))
        job.workers[0].runtime.expect()
        listener = threading.Thread(target=job.workers[0].runtime.notify, args=[notice(0)])
        listener.start()
        job.workers[0].let_train()
        job.workers[0].await_doing("boundary 3")  # although nobody has called yet
        release()
        listener.join(PATIENCE)
        job.service.await_key("/plan")
        job.end()
        assert [worker.acted[0][0] for worker in job.workers] == [3, 3]


def test_the_others_train_up_to_the_boundary_at_which_a_member_already_stands() -> None:
    with Job(2) as job:
        job.stand_in(2, 1)
        release = job.hold()
        job.service.await_call(1, "put", "/at/1")
        release()
        job.end()
        assert [steps for steps, _ in (job.workers[0].acted + job.workers[1].acted)] == [3, 3]
        assert job.workers[1].told("hold")


def test_every_notice_is_reported_with_the_boundary_of_the_fit() -> None:
    with Job(1) as job:
        job.stand_in(2)
        job.workers[0].runtime.notify(notice(0))
        job.workers[0].runtime.notify(notice(0, "coordination key"))
        job.end()
        assert [(told["source"], told["boundary"]) for told in job.workers[0].told("notice")] == [
            ("signal", 3),
            ("coordination key", 3),
        ]
        before = len(job.service.calls)
        job.workers[0].runtime.notify(notice(0, "after the end"))
        assert len(job.service.calls) == before
        assert job.workers[0].told("notice")[2]["source"] == "after the end"


def test_training_that_ends_undisturbed_is_finished_under_one_plan() -> None:
    with Job(3) as job:
        job.stand_in(0, 4, 7)
        job.end()
        plans = [plan for worker in job.workers for _, plan in worker.acted]
        assert len(plans) == 3
        assert plans == [plans[0]] * 3
        assert plans[0].kind is Kind.FINISHED
        assert all(worker.finished for worker in job.workers)


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=pytest.mark.chaos if n >= 8 else ()) for n in range(25)]
)
def test_a_notice_that_races_with_the_end_is_decided_once_for_all(seed: int) -> None:
    choose = random.Random(seed)
    with Job(2, steps=3) as job:
        job.start()
        noticed = choose.sample([0, 1], choose.choice([1, 2]))
        threads = [
            threading.Thread(target=job.workers[member].runtime.notify, args=[notice(member)])
            for member in noticed
        ]
        moves = [thread.start for thread in threads] + [worker.let_train for worker in job.workers]
        choose.shuffle(moves)
        for move in moves:
            move()
        for thread in threads:
            thread.join(PATIENCE)
        job.end()
        assert [worker.error for worker in job.workers] == [None, None]
        assert job.workers[0].finished == job.workers[1].finished
        assert len(job.workers[0].acted) == 1  # the state is saved in either case
        assert job.workers[0].acted == job.workers[1].acted


@pytest.mark.parametrize("died", [False, True])
def test_the_leader_leaves_after_the_others_and_waits_only_so_long_for_one_that_died_while_saving(
    died: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if died:
        monkeypatch.setattr(delegate, "LEADER_WAIT", 0.2)
    with Job(2) as job:
        job.stand_in(1, 1)
        late = job.service.hold_back("put", lambda member, key: "/left/1" in key)
        job.workers[0].runtime.notify(notice(0))
        job.service.await_key("/plan")
        for worker in job.workers:
            worker.let_train()
        job.service.await_call(0, "wait", "/left/1")
        assert died or job.workers[0].trains
        if died:
            job.workers[0].join()
        late()
        job.end()
        assert [steps for worker in job.workers for steps, _ in worker.acted] == [2, 2]


def test_training_continues_after_a_periodic_save_and_the_next_round_works() -> None:
    with Job(2) as job:
        job.stand_in(1, 2)
        call = Call(0, Kind.PERIODIC, "due").encode()
        job.service.coordinators()[0].put_if_absent("keras_preempt/1/0/call", call)
        job.service.await_key("/0/plan")
        for worker in job.workers:
            worker.stand_in(5)
        job.workers[1].runtime.notify(notice(1))
        job.service.await_key("/1/plan")
        job.end()
        assert [[steps for steps, _ in worker.acted] for worker in job.workers] == [[3, 6], [3, 6]]


def test_until_a_notice_arrives_a_boundary_sends_no_message() -> None:
    with Job(2, steps=500) as job:
        job.stand_in(499, 499)
        assert sorted(job.service.calls) == [
            (0, "wait", "keras_preempt/1/0/call"),
            (1, "wait", "keras_preempt/1/0/call"),
        ]
        job.end()


def ends_in(seconds: float) -> Notice:
    now = time.time()
    return Notice("azure", "an event", now, now + seconds)


def roomy(worker: Worker) -> None:
    """Forgets how long the test has kept the worker in its step."""
    worker.runtime.pace.leave(worker.runtime.entered)


def kinds(worker: Worker) -> list[Kind]:
    return [plan.kind for _, plan in worker.acted]


def first_save(job: Job, seconds: float = 60.0) -> None:
    """Brings everyone past the save at the notice."""
    for worker in job.workers:
        roomy(worker)
    job.workers[0].runtime.notify(ends_in(seconds))
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


def test_a_notice_that_is_withdrawn_before_the_start_calls_nobody_but_storage_is_told_of_both() -> None:
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
