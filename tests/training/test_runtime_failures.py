"""What the runtimes of a fit do when a member, or the coordination, is gone; and how each of them ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from keras_preempt.agreement import member
from keras_preempt.agreement.messages import Plan
from tests.training.runtime_job import Job, bounded_rounds, notice


@pytest.fixture(autouse=True)
def _leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with bounded_rounds(monkeypatch, 0.4):
        yield


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
        assert any("worker 2 did not answer" in text and "Training continues" in text for text in errors)


def test_a_worker_under_notice_asks_again_after_an_aborted_round_however_many_signals_came(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Job(2) as job:
        job.stand_in(2, 2)
        job.service.mute(lambda member, key: "/0/at/1" in key)  # lost in round 0 only
        for _ in range(6):
            job.workers[0].runtime.notify(notice(0))
        job.service.await_key("/1/plan")
        job.end()
        assert [steps for worker in job.workers for steps, _ in worker.acted] == [3, 3]
        assert "stops asking" not in caplog.text


def test_no_worker_waits_for_ever_for_the_plan_of_a_caller_that_died() -> None:
    with Job(3) as job:
        job.stand_in(2, 2, 2)
        job.service.hold_back("wait", lambda member, key: member == 1 and "/at/" in key)  # for good
        job.workers[1].runtime.notify(notice(1))
        job.service.await_key("/at/", count=3)
        for worker in (job.workers[0], job.workers[2]):
            worker.let_train(4)
            worker.await_doing("step 4")  # the hold at boundary 3 has ended
        (plan,) = job.service.await_key("/plan")
        assert "worker 1 called, and then made no plan" in str(Plan.decode(plan).abort)
        job.service.lose()
        job.end()


def test_coordination_that_is_lost_while_held_releases_the_hold(caplog: pytest.LogCaptureFixture) -> None:
    with Job(2) as job:
        job.stand_in(2, 2)
        job.hold()
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
        job.workers[1].ahead = 7
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


def test_a_fit_that_ends_by_an_exception_tells_the_others_and_releases_them() -> None:
    with Job(2) as job:
        job.stand_in(2, 2)
        job.workers[1].runtime.close("ValueError: the loss is NaN")
        job.workers[0].runtime.notify(notice(0))
        job.workers[0].join()
        assert job.workers[0].finished
        assert job.workers[0].acted == []
        assert "worker 1 has left its fit: ValueError: the loss is NaN" in str(job.workers[0].runtime.fatal)
        job.end()


@pytest.mark.parametrize(
    "state",
    [
        "not started",
        "listening",
        "gathering answers",
        "waiting for the plan",
        "planned",
        "acting",
        "lost",
        "held",
    ],
)
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
        if state == "waiting for the plan":
            release = job.service.hold_back("put", lambda member, key: key.endswith("/plan"))
            other.runtime.notify(notice(1))
            job.service.await_call(0, "wait", "/plan")
            threading.Timer(0.1, release).start()
        elif state == "held":
            release = job.hold()
        elif state == "gathering answers":
            job.service.mute(lambda member, key: "/at/1" in key)
            worker.runtime.notify(notice(0))
            job.service.await_call(0, "wait", "/at/1")
        elif state != "listening":
            worker.runtime.notify(notice(0))
        if state in ("planned", "acting"):
            job.service.await_key("/plan")
        if state == "acting":
            worker.let_train(3)
            worker.await_doing("plan 0")
        if state == "lost":
            job.service.lose()
        worker.runtime.close("closed in the middle")
        assert not worker.runtime._delegate._watcher.is_alive()
        worker.runtime.close("and again")
        if worker.saving is not None:
            worker.saving.set()
        if state == "held":
            release()
        job.end()


@pytest.mark.parametrize("step", [2, 7], ids=["in the middle", "in the last step"])
def test_a_signal_whose_notice_never_comes_holds_training_for_a_moment_only(
    step: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(member, "EXPECTED_WITHIN", 0.1)
    with Job(1) as job:
        (worker,) = job.workers
        job.stand_in(step)
        worker.runtime.expect()  # As the signal handler does; and nobody notifies.
        job.end()
        assert worker.finished
        assert worker.trained == 8
        assert worker.runtime.fatal is None
        assert worker.told("error") == []
        assert caplog.text.count("no notice of it has come") == 1
