"""The rounds of a fit: real runtimes with their threads, over keys in memory."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest

from keras_preempt.agreement import rounds
from keras_preempt.agreement.alignment import Call, Kind
from tests.agreement.memory_coordinator import PATIENCE
from tests.training.runtime_job import Job, bounded_rounds, notice


@pytest.fixture(autouse=True)
def _leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with bounded_rounds(monkeypatch):
        yield


@pytest.mark.parametrize("noticed", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_all_act_at_the_boundary_after_the_furthest_step_whoever_gets_the_notice(
    noticed: tuple[int, ...],
) -> None:
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
        monkeypatch.setattr(rounds, "LEADER_WAIT", 0.2)
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
