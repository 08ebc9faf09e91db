"""An end that is known all along: where it is found, and when it becomes a notice."""

from __future__ import annotations

import time

import pytest

from keras_preempt.agreement.grace import MARGIN, SHORTEST_LEAD, lead
from keras_preempt.agreement.messages import Call, Kind
from keras_preempt.notices.platform import GENERIC, compose
from keras_preempt.notices.termination import Termination, TerminationConfig
from keras_preempt.notices.time_limit import LimitEnd, TimeLimitNotices, ends_job, find_end
from keras_preempt.process import environment, this_process
from tests.notices.ear import Ear, started

HOUR = 3600.0
SLURM = compose("slurm", None, "none")


@pytest.fixture(autouse=True)
def _knows_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.END_TIME, raising=False)
    monkeypatch.delenv(SLURM.end_variable, raising=False)


# -- Where it is found --------------------------------------------------------------------------------------


def test_without_a_limit_no_end_is_known() -> None:
    assert Termination(TerminationConfig(), SLURM).end is None


def test_a_process_may_run_for_its_limit_from_its_own_start() -> None:
    end = Termination(TerminationConfig(time_limit="11h50m"), GENERIC).end
    assert end is not None
    assert end.at == pytest.approx(this_process.started_at() + 11 * HOUR + 50 * 60, abs=0.1)
    assert not end.of_job


def test_the_allocation_of_slurm_is_over_when_slurm_says(monkeypatch: pytest.MonkeyPatch) -> None:
    at = round(time.time()) + HOUR
    monkeypatch.setenv("SLURM_JOB_END_TIME", f"{at:.0f}")
    termination = Termination(TerminationConfig(), SLURM)
    assert termination.end == LimitEnd(at, "SLURM_JOB_END_TIME")
    local = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    assert termination.describe().endswith(
        f" The time limit is over at {local} (SLURM_JOB_END_TIME): it saves and leaves before that."
    )
    assert Termination(TerminationConfig(time_limit=None), SLURM).end is None
    assert Termination(TerminationConfig(), GENERIC).end is None, "it is a leftover of another job"


def test_the_earliest_end_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setenv("SLURM_JOB_END_TIME", f"{now + 2 * HOUR}")
    monkeypatch.setenv(environment.END_TIME, f"{now + 3 * HOUR}")
    for limit, expected in [("10d", "SLURM_JOB_END_TIME"), ("1h", "time_limit of 1h")]:
        end = Termination(TerminationConfig(time_limit=limit), SLURM).end
        assert end is not None
        assert end.what == expected
    end = Termination(TerminationConfig(time_limit=None), SLURM).end
    assert end == LimitEnd(pytest.approx(now + 3 * HOUR), environment.END_TIME)


@pytest.mark.parametrize("text", ["soon", "nan", "inf", "-1", "3600", "11h50m", "1700000000000"])
def test_a_wrong_end_of_the_user_is_an_error_and_one_of_the_platform_a_warning(
    text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(SLURM.end_variable, text)
    assert Termination(TerminationConfig(), SLURM).end is None
    (warned,) = caplog.messages
    assert warned.startswith("Expected SLURM_JOB_END_TIME to be a moment after the start of this process, ")
    assert f"Received: {text!r}." in warned
    monkeypatch.setenv(environment.END_TIME, text)
    with pytest.raises(
        ValueError, match=f"Expected {environment.END_TIME} to be a moment.*Received: {text!r}"
    ):
        Termination(TerminationConfig(), GENERIC)


def test_a_leftover_of_an_earlier_allocation_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(SLURM.end_variable, f"{this_process.started_at() - 60:.0f}")
    assert find_end(None, SLURM.end_variable) is None
    assert len(caplog.messages) == 1


# -- When it becomes a notice -------------------------------------------------------------------------------


class Job:
    """What a source is told: the time, and what a save needs."""

    def __init__(self, ear: Ear, left: float, reserve: float = MARGIN, *, of_job: bool = True) -> None:
        self.now, self.reserve = 1000.0, reserve
        end = LimitEnd(time.time() + left, "the limit", of_job)
        self.source = TimeLimitNotices(end, lambda: self.reserve, ear.notice, lambda: self.now)


def test_the_lead_leaves_room_for_two_saves_that_take_twice_as_long_as_expected() -> None:
    assert lead(MARGIN) == SHORTEST_LEAD
    for reserve in (10.0, 100.0):
        assert lead(reserve) == pytest.approx(2 * (3 * (reserve - MARGIN) + MARGIN))


def test_the_notice_says_how_much_is_left_and_comes_once(ear: Ear) -> None:
    job = Job(ear, left=SHORTEST_LEAD - 5)
    with started(job.source):
        notice = ear.wait()
        job.source.called(Call(1, Kind.PREEMPTED))
        assert ear.hears_nothing_new()
    assert notice.source == "time limit"
    assert notice.reason == "Time limit (the limit)"
    assert notice.deadline == pytest.approx(notice.received_at + SHORTEST_LEAD - 5, abs=0.5)
    assert notice.foreseen
    assert ends_job(notice)


def test_an_end_that_is_over_leaves_no_moment_to_be_done_by(ear: Ear) -> None:
    job = Job(ear, left=-7.0, of_job=False)
    with started(job.source):
        notice = ear.wait()
    assert notice.deadline is None
    assert notice.reason == "Time limit (the limit), over for 7 s"
    assert not ends_job(notice)


def test_a_reserve_that_grows_meanwhile_brings_the_notice_forward(ear: Ear) -> None:
    job = Job(ear, left=SHORTEST_LEAD + 0.4)
    with started(job.source):
        assert job.source.due_in() == pytest.approx(0.4, abs=0.1)
        job.reserve = 20.0
        ear.wait()  # Though the clock stands.


@pytest.mark.parametrize(
    ("kind", "left", "joins"),
    [
        (Kind.PREEMPTED, 2 * SHORTEST_LEAD - 1, True),
        (Kind.DEADLINE, 2 * SHORTEST_LEAD - 1, True),
        (Kind.PREEMPTED, 2 * SHORTEST_LEAD + 1, False),
        (Kind.PERIODIC, SHORTEST_LEAD + 1, False),
        (Kind.FINISHED, SHORTEST_LEAD + 1, False),
    ],
)
def test_an_end_that_is_near_joins_the_round_of_another_worker(
    kind: Kind, left: float, joins: bool, ear: Ear
) -> None:
    job = Job(ear, left)
    with started(job.source):
        job.source.called(Call(1, kind))
        assert bool(ear.notices) == joins


def test_nothing_is_announced_after_a_stop(ear: Ear) -> None:
    job = Job(ear, left=HOUR)
    with started(job.source):
        pass
    job.now += 2 * HOUR
    job.source.called(Call(1, Kind.PREEMPTED))
    job.source.stop()
    assert ear.notices == []
