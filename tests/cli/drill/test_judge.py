"""What happened to an incarnation is compared with what was planned: only a planned death is forgiven."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from keras_preempt.cli.drill.judge import Judge, NoVerdict
from keras_preempt.cli.drill.plan import Preemption
from keras_preempt.cluster import Incarnation, Outcome, SupervisorReport, Verdict, WorkerExit
from keras_preempt.cluster.status import WorkerStatus

KILL, NOTICE = Preemption(0, 5, kill=True), Preemption(0, 5, signal="SIGUSR1")


def ended(
    code: int, index: int = 0, number: int = 0, outcome: Outcome = Outcome.FAILED, timed_out: bool = False
) -> Incarnation:
    cause = WorkerExit(index, code, 1.0)
    return Incarnation(number, (cause,), Verdict(outcome, cause, ()), 1.0, {}, timed_out=timed_out)


def test_the_planned_death_is_forgiven_and_reported_with_the_checkpoint_to_continue_from(
    tmp_path: Path,
) -> None:
    judge = Judge([KILL], str(tmp_path), {})
    assert judge.why_expected(ended(-9)) == "w0 was killed as planned; there is no checkpoint yet"
    assert judge.lost == {0}
    judge = Judge([NOTICE], str(tmp_path), {0: 0})
    assert (judge.why_expected(ended(-9)) or "").startswith("w0 was killed at the end of its grace period")


@pytest.mark.parametrize(
    ("plan", "incarnation"),
    [
        ([KILL], ended(1)),
        ([KILL], ended(-11)),
        ([KILL], ended(-9, index=1)),
        ([KILL], ended(-9, number=1)),
        ([KILL], ended(-9, timed_out=True)),
        ([NOTICE], ended(-9)),
        ([], ended(-9)),
    ],
)
def test_any_other_end_is_a_failure(plan: list[Preemption], incarnation: Incarnation, tmp_path: Path) -> None:
    judge = Judge(plan, str(tmp_path), {})
    assert judge.why_expected(incarnation) is None
    assert judge.lost == set()


def report(*incarnations: Incarnation) -> SupervisorReport:
    return SupervisorReport(incarnations, 0, "finished")


FINISHED = ended(0, outcome=Outcome.FINISHED)


def test_a_preemption_that_did_not_come_is_no_verdict(tmp_path: Path) -> None:
    judge = Judge([KILL, NOTICE], str(tmp_path), {})
    judge.why_expected(ended(-9))
    judge.check(report(ended(-9), ended(75, number=1, outcome=Outcome.PREEMPTED), FINISHED))
    with pytest.raises(
        NoVerdict, match=r"expected 2 preemptions\. Received: 1; this one did not come: w0 at step 5"
    ):
        judge.check(report(ended(-9), FINISHED))


@pytest.mark.parametrize(
    ("grace", "why"),
    [
        ({"grace": 5.0}, r"grace period that began with w0 at step 5.*Shorten the grace period"),
        ({}, r"SIGUSR1 came so late that training finished.*w0 at step 5"),
    ],
)
def test_training_that_finishes_all_the_same_is_no_verdict_and_says_why(
    grace: dict[str, float], why: str, tmp_path: Path
) -> None:
    judge = Judge([NOTICE], str(tmp_path), {}, {0}, **grace)
    judge.check(report(ended(75, outcome=Outcome.PREEMPTED), FINISHED))
    with pytest.raises(NoVerdict, match=why) as caught:
        judge.check(report(FINISHED))
    assert ("grace" in caught.value.message) == bool(grace)


def test_a_preemption_of_the_undisturbed_run_is_no_verdict(tmp_path: Path) -> None:
    judge = Judge([], str(tmp_path), {})
    judge.check(report(FINISHED))
    with pytest.raises(NoVerdict, match="preempted from outside"):
        judge.check(report(ended(75, outcome=Outcome.PREEMPTED), FINISHED))


def test_a_signal_that_ended_the_worker_is_explained_only_if_it_was_that_one(tmp_path: Path) -> None:
    judge = Judge([NOTICE], str(tmp_path), {})
    assert "the script does not listen for it" in judge.cure(report(ended(-signal.SIGUSR1)))
    assert judge.cure(report(ended(-signal.SIGTERM))) == ""
    assert judge.cure(report(ended(-signal.SIGUSR1, index=1))) == ""
    told = Incarnation(**{**vars(ended(-signal.SIGUSR1)), "statuses": {0: WorkerStatus(saved=True)}})
    assert judge.cure(report(told)) == ""


def test_an_interrupt_that_python_turned_into_an_error_is_explained_as_well(tmp_path: Path) -> None:
    judge = Judge([Preemption(0, 5, signal="SIGINT")], str(tmp_path), {})
    told = Incarnation(**{**vars(ended(-signal.SIGINT)), "statuses": {0: WorkerStatus()}})
    assert "SIGINT ended w0: the script does not listen for it" in judge.cure(report(told))
