"""The rounds of a fit: real runtimes with their threads, over keys in memory."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator

import pytest

from keras_preempt import runtime as runtime_module
from keras_preempt.alignment import Call, Kind, Plan
from tests.memory_coordinator import PATIENCE
from tests.runtime_job import Job, notice


@pytest.fixture(autouse=True)
def _leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(runtime_module, "ALIGNMENT_TIMEOUT", 0.4)
    yield
    limit = time.monotonic() + 10
    for thread in threading.enumerate():
        if thread.name.startswith(("keras_preempt", "main-")):
            thread.join(max(0.0, limit - time.monotonic()))
            assert not thread.is_alive(), f"{thread.name} was left behind"


def the_plan(job: Job) -> Plan:
    (text,) = job.service.await_key("/plan")
    return Plan.decode(text)


@pytest.mark.parametrize("noticed", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_all_act_at_the_boundary_after_the_furthest_step_whoever_gets_the_notice(noticed: tuple[int, ...]) -> None:
    with Job(3) as job:
        job.stand_in(3, 5, 4)
        for member in noticed:
            job.workers[member].runtime.notify(notice(member))
        job.service.await_key("/plan")
        job.end()
        plans = [plan for worker in job.workers for _, plan in worker.acted]
        assert [[steps for steps, _ in worker.acted] for worker in job.workers] == [[6], [6], [6]]
        assert plans == [plans[0]] * 3
        assert set(plans[0].doomed) <= set(noticed)
        assert set(plans[0].writers) == ({0, 1, 2} - set(plans[0].doomed) or {0, 1, 2})
        assert all(not worker.finished and worker.error is None for worker in job.workers)


def test_the_peers_know_of_a_notice_before_the_step_of_anyone_ends() -> None:
    with Job(3) as job:
        job.stand_in(2, 2, 2)
        job.workers[1].runtime.notify(notice(1))
        job.service.await_key("/at/", count=3)
        assert the_plan(job).target == 4
        assert [worker.trained for worker in job.workers] == [2, 2, 2]  # all are still in that step
        assert [worker.runtime.entered for worker in job.workers] == [3, 3, 3]
        job.end()
        assert [worker.trained for worker in job.workers] == [3, 3, 3]


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
        job.end()
        assert [worker.acted[0][0] for worker in job.workers] == [3, 3]


def test_no_step_begins_while_a_notice_that_came_before_the_start_is_acted_on() -> None:
    with Job(1) as job:
        worker = job.workers[0]
        release = job.service.hold_back("wait", lambda member, key: key.endswith("/call"))
        worker.runtime.notify(notice())
        worker.runtime.start(incarnation=1)
        worker.begin()
        worker.await_doing("boundary 0")
        release()
        job.end()
        assert [steps for steps, _ in worker.acted] == [0]


def test_a_signal_before_the_start_does_not_hold_a_fit_that_has_not_begun() -> None:
    with Job(1) as job:
        job.workers[0].runtime.expect()
        assert not job.workers[0].runtime.attention
        job.start()
        job.end()
        assert job.workers[0].finished


def test_a_member_that_stands_at_a_boundary_is_the_one_that_the_others_come_to() -> None:
    with Job(2) as job:
        job.stand_in(2, 1)
        release = job.service.hold_back("put", lambda member, key: "/at/1" in key)
        job.workers[0].runtime.notify(notice(0))
        job.service.await_key("/at/0")
        job.workers[0].let_train()
        job.workers[0].await_doing("boundary 3")
        release()
        job.end()
        assert [steps for steps, _ in (job.workers[0].acted + job.workers[1].acted)] == [3, 3]
        assert job.workers[1].told("hold")


def test_two_notices_make_one_plan_that_spares_both() -> None:
    with Job(3) as job:
        job.stand_in(1, 1, 1)
        release = job.service.hold_back("wait", lambda member, key: member == 2 and key.endswith("/call"))
        job.workers[0].runtime.notify(notice(0))
        job.workers[2].runtime.notify(notice(2))
        release()
        assert the_plan(job).doomed == (0, 2)
        assert the_plan(job).writers == (1,)
        job.end()
        assert [steps for worker in job.workers for steps, _ in worker.acted] == [2, 2, 2]


def test_every_notice_is_told_with_where_the_fit_was() -> None:
    with Job(1) as job:
        job.stand_in(2)
        job.workers[0].runtime.notify(notice(0))
        job.workers[0].runtime.notify(notice(0, "coordination key"))
        job.end()
        assert [(told["source"], told["boundary"]) for told in job.workers[0].told("notice")] == [
            ("signal", 3),
            ("coordination key", 3),
        ]


# -- What goes wrong ------------------------------------------------------------------------------------


def test_a_dead_member_aborts_the_round_and_lets_everyone_train_on(caplog: pytest.LogCaptureFixture) -> None:
    with Job(3, alive=2) as job:
        job.stand_in(2, 3)
        job.workers[0].runtime.notify(notice(0))
        job.service.await_key("/at/", count=2)
        job.end()  # at a boundary by now, and held
        for worker in job.workers:
            assert worker.finished
            assert worker.trained == 8
            assert worker.acted == []
            assert "worker 2 did not answer" in worker.told("abort")[0]["reason"]
        errors = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
        assert any("worker 2 did not answer" in message and "Training goes on" in message for message in errors)


def test_a_worker_under_notice_asks_again_after_an_aborted_round() -> None:
    with Job(2) as job:
        job.stand_in(2, 2)
        job.service.mute(lambda member, key: "/0/at/1" in key)  # lost in round 0 only
        job.workers[0].runtime.notify(notice(0))
        job.service.await_key("/1/plan")
        job.end()
        assert [steps for worker in job.workers for steps, _ in worker.acted] == [3, 3]
        assert job.workers[0].acted[0][1].attempt == "00001-0001"


def test_many_signals_are_one_reason_and_do_not_use_up_the_asking(caplog: pytest.LogCaptureFixture) -> None:
    with Job(2) as job:
        job.stand_in(2, 2)
        job.service.mute(lambda member, key: "/0/at/1" in key)
        for _ in range(6):
            job.workers[0].runtime.notify(notice(0))
        job.service.await_key("/1/plan")
        job.end()
        assert [steps for worker in job.workers for steps, _ in worker.acted] == [3, 3]
        assert "stops asking" not in caplog.text


def test_a_caller_that_dies_before_its_plan_holds_nobody_for_ever() -> None:
    with Job(3) as job:
        job.stand_in(2, 2, 2)
        job.service.mute(lambda member, key: member == 1 and key.endswith("/plan"))
        silent = job.service.hold_back("wait", lambda member, key: member == 1 and "/at/" in key)
        job.workers[1].runtime.notify(notice(1))
        for worker in job.workers:
            worker.let_train(4)
        for worker in job.workers:
            worker.await_doing("step 4")  # the hold at boundary 3 has ended
        assert "worker 1 called, and then made no plan" in the_plan(job).abort
        silent()
        job.end()


def test_coordination_that_is_lost_while_held_releases_the_hold(caplog: pytest.LogCaptureFixture) -> None:
    with Job(2) as job:
        job.stand_in(2, 2)
        job.service.hold_back("put", lambda member, key: "/at/1" in key)
        job.workers[0].runtime.notify(notice(0))
        job.service.await_key("/at/0")
        job.workers[0].let_train()
        job.workers[0].await_doing("boundary 3")
        job.service.lose()
        job.end()
        for worker in job.workers:
            assert worker.finished
            assert worker.acted == []
            assert worker.runtime.fatal is not None
            assert worker.told("error")
        assert "No checkpoint can be agreed on any more" in caplog.text


def test_a_plan_that_is_known_is_carried_out_although_coordination_is_lost() -> None:
    with Job(2) as job:
        job.stand_in(3, 1)
        job.workers[0].runtime.notify(notice(0))
        job.service.await_key("/plan")
        for worker in job.workers:
            worker.events.await_kind("plan")
        job.service.lose()
        job.end()
        assert [steps for worker in job.workers for steps, _ in worker.acted] == [4, 4]
        assert all(worker.error is None for worker in job.workers)


def test_members_that_disagree_about_the_program_are_named_and_nobody_acts() -> None:
    with Job(2) as job:
        job.workers[1]._positions = 7
        job.stand_in(1, 1)
        release = job.service.hold_back("wait", lambda member, key: key.endswith("/call"))
        job.workers[0].runtime.expect()
        job.workers[1].runtime.expect()
        for worker in job.workers:
            worker.let_train(3)
            worker.await_doing("boundary 2")
        job.workers[0].runtime.notify(notice(0))
        release()
        plan = Plan.decode(job.service.await_key("/0/plan")[0])
        assert plan.abort is not None
        assert "train batch 2" in plan.abort
        assert "train batch 9" in plan.abort
        job.service.lose()
        job.end()
        assert [worker.acted for worker in job.workers] == [[], []]


def test_a_fit_that_ends_by_an_exception_tells_the_others_and_lets_them_go() -> None:
    with Job(2) as job:
        job.stand_in(2, 2)
        job.workers[1].runtime.close("ValueError: the loss is NaN")
        job.workers[0].runtime.notify(notice(0))
        job.workers[0].join()
        assert job.workers[0].finished
        assert job.workers[0].acted == []
        assert "worker 1 has left its fit: ValueError: the loss is NaN" in str(job.workers[0].runtime.fatal)
        job.end()


# -- The end --------------------------------------------------------------------------------------------


def test_training_that_ends_undisturbed_is_finished_under_one_plan() -> None:
    with Job(3) as job:
        job.stand_in(0, 4, 7)
        job.end()
        plans = [plan for worker in job.workers for _, plan in worker.acted]
        assert len(plans) == 3
        assert plans == [plans[0]] * 3
        assert plans[0].kind is Kind.FINISHED
        assert all(worker.finished for worker in job.workers)


@pytest.mark.parametrize("seed", range(25))
def test_a_notice_that_races_with_the_end_is_decided_once_for_all(seed: int) -> None:
    choose = random.Random(seed)
    with Job(2, steps=3) as job:
        job.start()
        noticed = choose.sample([0, 1], choose.choice([1, 2]))
        threads = [
            threading.Thread(target=job.workers[member].runtime.notify, args=[notice(member)]) for member in noticed
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


def test_a_notice_for_a_fit_that_is_over_is_told_and_calls_nobody() -> None:
    with Job(1) as job:
        job.start()
        job.end()
        before = len(job.service.calls)
        job.workers[0].runtime.notify(notice(0))
        assert len(job.service.calls) == before
        assert job.workers[0].told("notice")


def test_the_leader_leaves_after_the_others() -> None:
    with Job(2) as job:
        job.stand_in(1, 1)
        late = job.service.hold_back("put", lambda member, key: "/left/1" in key)
        job.workers[0].runtime.notify(notice(0))
        job.service.await_key("/plan")
        for worker in job.workers:
            worker.let_train()
        job.service.await_call(0, "wait", "/left/1")
        assert job.workers[0].trains
        late()
        job.end()


def test_the_leader_waits_only_so_long_for_one_that_died_while_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "LEADER_WAIT", 0.2)
    with Job(2) as job:
        job.stand_in(1, 1)
        job.service.mute(lambda member, key: "/left/1" in key)
        job.workers[0].runtime.notify(notice(0))
        job.service.await_key("/plan")
        job.end()
        assert [steps for worker in job.workers for steps, _ in worker.acted] == [2, 2]


# -- Rounds after which training goes on ------------------------------------------------------------------


def call_periodic(job: Job, member: int = 0, round: int = 0) -> None:
    job.workers[member].runtime._coordinator.put_if_absent(
        f"keras_preempt/1/{round}/call", Call(member, Kind.PERIODIC, "due").encode()
    )


def test_training_goes_on_after_a_periodic_save_and_the_next_round_works() -> None:
    with Job(2) as job:
        job.stand_in(1, 2)
        call_periodic(job)
        job.service.await_key("/0/plan")
        for worker in job.workers:
            worker.stand_in(5)
        job.workers[1].runtime.notify(notice(1))
        job.service.await_key("/1/plan")
        job.end()
        assert [[steps for steps, _ in worker.acted] for worker in job.workers] == [[3, 6], [3, 6]]
        assert [plan.attempt for _, plan in job.workers[0].acted] == ["00001-0000", "00001-0001"]


def test_a_notice_during_a_periodic_save_is_acted_on_right_after_it() -> None:
    with Job(2) as job:
        saving = threading.Event()
        for worker in job.workers:
            worker.saving = saving
        job.stand_in(1, 1)
        call_periodic(job)
        job.service.await_key("/0/plan")
        for worker in job.workers:
            worker.let_train(2)
            worker.await_doing("plan 0")
        job.workers[0].runtime.notify(notice(0))
        saving.set()
        job.service.await_key("/1/plan")
        job.end()
        assert [[steps for steps, _ in worker.acted][0] for worker in job.workers] == [2, 2]
        assert job.workers[0].acted[1][1].kind is Kind.PREEMPTED
        assert job.workers[0].acted[1] == job.workers[1].acted[1]


# -- What it costs while nothing happens, and how it ends --------------------------------------------------


def test_while_nothing_happens_a_boundary_asks_nobody_anything() -> None:
    with Job(2, steps=500) as job:
        job.stand_in(499, 499)
        assert sorted(job.service.calls) == [
            (0, "wait", "keras_preempt/1/0/call"),
            (1, "wait", "keras_preempt/1/0/call"),
        ]
        job.end()


STATES = ("not started", "listening", "gathering answers", "waiting for the plan", "planned", "acting", "lost")


@pytest.mark.parametrize("state", STATES)
def test_close_wakes_and_ends_the_watcher_in_every_state(state: str) -> None:
    with Job(2) as job:
        worker, other = job.workers
        if state == "not started":
            worker.runtime.close("closed early")
            worker.runtime.close("and again")
            return
        if state == "acting":
            worker.saving = threading.Event()
        job.stand_in(2, 2)
        if state == "gathering answers":
            job.service.mute(lambda member, key: "/at/1" in key)
        if state == "waiting for the plan":
            job.service.mute(lambda member, key: member == 1 and key.endswith("/plan"))
            other.runtime.notify(notice(1))
            job.service.await_call(0, "wait", "/plan")
        elif state != "listening":
            worker.runtime.notify(notice(0))
        if state == "gathering answers":
            job.service.await_call(0, "wait", "/at/1")
        if state in ("planned", "acting"):
            job.service.await_key("/plan")
        if state == "acting":
            worker.let_train(3)
            worker.await_doing("plan 0")
        if state == "lost":
            job.service.lose()
        worker.runtime.close("closed in the middle")
        assert not worker.runtime._watcher.is_alive()
        worker.runtime.close("and again")
        if worker.saving is not None:
            worker.saving.set()
        job.end()


def test_close_ends_a_hold() -> None:
    with Job(2) as job:
        job.stand_in(2, 2)
        stuck = job.service.hold_back("put", lambda member, key: "/at/1" in key)
        job.workers[0].runtime.notify(notice(0))
        job.service.await_key("/at/0")
        job.workers[0].let_train()
        job.workers[0].await_doing("boundary 3")
        job.workers[0].runtime.close("interrupted")
        stuck()
        job.end()
