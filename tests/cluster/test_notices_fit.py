"""Every source of notices, heard by a real fit in this process.

| what comes | the fit | test |
|---|---|---|
| a notice of each source | saves and exits with the platform's status | test_a_notice_of_the_platform_... |
| it was there when fit began | the same, at the first moment | test_a_notice_that_was_there_first_... |
| an event that ends nothing | trains on | test_what_ends_no_machine_... |
| a rebalance recommendation | saves and trains on | test_a_rebalance_recommendation_... |
| maintenance that is called off | trains on | test_maintenance_that_is_called_off_... |
| a server that fails | trains on, and hears what comes later | test_a_server_that_fails_... |
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

from keras_preempt.testing import FakeMetadata
from tests.cluster.noticed_fit import NoticedFit, Outcome

AT_ONCE = {"grace_period": 0}
EXITS = {**AT_ONCE, "exit_fn": None}
HOUR = 3600.0


pytestmark = pytest.mark.usefixtures("everything_is_given_back")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMetadata]:
    with FakeMetadata() as fake:
        for name, value in fake.environment.items():
            monkeypatch.setenv(name, value)
        yield fake


def publish(job: NoticedFit, what: Callable[[], object]) -> Callable[[], None]:
    """Publishes something, and waits until it is heard."""

    def act() -> None:
        what()
        job.await_told("notice")

    return act


SOURCES: dict[str, tuple[str, int, Callable[[FakeMetadata], object]]] = {
    "GCE preemption": ("gce-gpu", 143, lambda fake: fake.gce.preempt()),
    "GCE maintenance": (
        "gce-cpu",
        143,
        lambda fake: fake.gce.maintenance("TERMINATE_ON_HOST_MAINTENANCE"),
    ),
    "GCE preemption on a TPU machine": ("gce-tpu", 42, lambda fake: fake.gce.preempt()),
    "GCE preemption under Slurm": ("slurm+gce-cpu", 75, lambda fake: fake.gce.preempt()),
    "AWS interruption": ("aws", 75, lambda fake: fake.aws.interrupt()),
    "Azure Preempt": ("azure", 75, lambda fake: fake.azure.schedule("Preempt")),
    "Azure Reboot that has started": ("azure", 75, lambda fake: fake.azure.schedule("Reboot", started=True)),
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_notice_of_the_platform_ends_the_fit_with_its_exit_status(
    source: str,
    job: NoticedFit,
    fake: FakeMetadata,
    undisturbed_fit: Outcome,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    platform, status, happen = SOURCES[source]
    monkeypatch.setenv("KERAS_PREEMPT_PLATFORM", platform)
    outcome = job.fit({(1, 2): publish(job, lambda: happen(fake))}, termination=EXITS)
    assert outcome.ended == f"SystemExit {status}"
    assert [step[:2] for step in outcome.steps][-1] == (1, 2), "more or less than the step in flight"
    (notice,) = job.told("notice")
    assert notice["source"] != "signal"
    monkeypatch.setenv("KERAS_PREEMPT_PLATFORM", "generic")  # The next machine has no notice.
    job.fit()
    job.assert_nothing_lost(undisturbed_fit)


def test_a_notice_leaves_the_time_that_it_names(
    job: NoticedFit, fake: FakeMetadata, undisturbed_fit: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event of Azure that moves: an hour, and then none."""
    monkeypatch.setenv("KERAS_PREEMPT_PLATFORM", "azure")
    event: list[str] = []

    def come() -> None:
        event.append(fake.azure.schedule("Terminate", not_before=time.time() + HOUR))
        job.await_told("notice")

    def move() -> None:
        job.await_told("commit")
        fake.azure.begin(event[0])
        job.await_told("notice", 2)

    outcome = job.fit({(0, 4): come, (1, 4): move})
    assert outcome.ended == "Preempted"
    assert [(plan["reason"], plan["goes_on"]) for plan in job.told("plan")] == [
        ("preempted", True),
        ("deadline", False),
    ]
    assert [commit["step"] for commit in job.told("commit")] == [5, 11]
    fake.azure.cancel(event[0])
    job.fit()
    job.assert_nothing_lost(undisturbed_fit)


def fit_on_a_doomed_machine(job: NoticedFit, grace_period: float) -> Outcome:
    """A fit that hears of the notice before its first step."""
    heard = len(job.told("notice"))
    return job.fit(
        on_begin=lambda: job.await_told("notice", heard + 1), termination={"grace_period": grace_period}
    )


def test_a_notice_that_was_there_first_and_leaves_no_time_ends_the_fit_before_its_first_step(
    job: NoticedFit, fake: FakeMetadata, undisturbed_fit: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that is doomed already, before and after a checkpoint is there."""
    monkeypatch.setenv("KERAS_PREEMPT_PLATFORM", "gce-cpu")
    fake.gce.preempt()
    for _ in range(2):
        outcome = fit_on_a_doomed_machine(job, 0)
        assert (outcome.ended, outcome.steps) == ("Preempted", [])
    fake.gce.set("instance/preempted", "FALSE")
    job.fit()
    job.assert_nothing_lost(undisturbed_fit)


def test_a_notice_that_was_there_first_and_leaves_time_is_saved_for_at_once_and_trained_on(
    job: NoticedFit, fake: FakeMetadata, undisturbed_fit: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that is doomed already, but not before training is over."""
    monkeypatch.setenv("KERAS_PREEMPT_PLATFORM", "gce-cpu")
    fake.gce.preempt()
    assert fit_on_a_doomed_machine(job, HOUR).ended == "finished"
    first, *_ = job.told("plan")
    assert (first["reason"], first["goes_on"]) == ("preempted", True)
    assert job.told("commit")[0]["step"] == 0
    again = fit_on_a_doomed_machine(job, HOUR)
    assert (again.ended, again.steps) == ("finished", [])
    job.assert_nothing_lost(undisturbed_fit)


ENDS_NOTHING: dict[str, tuple[str, str, Callable[[FakeMetadata], object]]] = {
    "MIGRATE": (
        "gce-cpu",
        "maintenance-event",
        lambda fake: fake.gce.maintenance("MIGRATE_ON_HOST_MAINTENANCE"),
    ),
    "another value": ("gce-cpu", "maintenance-event", lambda fake: fake.gce.maintenance("SOMETHING_NEW")),
    "another machine's event": (
        "azure",
        "scheduledevents",
        lambda fake: fake.azure.schedule("Preempt", resources=["other_1"]),
    ),
    "Freeze": ("azure", "scheduledevents", lambda fake: fake.azure.schedule("Freeze")),
}


@pytest.mark.parametrize("what", ENDS_NOTHING)
def test_what_ends_no_machine_ends_no_training(
    what: str,
    job: NoticedFit,
    fake: FakeMetadata,
    undisturbed_fit: Outcome,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    platform, question, happen = ENDS_NOTHING[what]
    monkeypatch.setenv("KERAS_PREEMPT_PLATFORM", platform)

    def act() -> None:
        fake.wait_for_requests(1, question)
        asked = sum(question in request.text for request in fake.requests)
        happen(fake)
        # A question that began after the answer to one that began after it happened.
        fake.wait_for_requests(asked + 2, question)

    assert job.fit({(1, 2): act}, termination=AT_ONCE).ended == "finished"
    assert job.told("notice") == []
    assert [plan["reason"] for plan in job.told("plan")] == ["finished"]
    job.assert_nothing_lost(undisturbed_fit)


def test_a_rebalance_recommendation_saves_and_lets_training_go_on(
    job: NoticedFit, fake: FakeMetadata, undisturbed_fit: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_PREEMPT_PLATFORM", "aws")
    fake.aws.rebalance()
    outcome = job.fit({(0, 2): lambda: job.await_told("plan"), (1, 2): lambda: job.await_told("commit")})
    assert outcome.ended == "finished"
    assert [plan["reason"] for plan in job.told("plan")] == ["periodic", "finished"]
    assert job.told("commit")[0]["step"] <= 3
    job.assert_nothing_lost(undisturbed_fit)


@pytest.mark.parametrize("when", ["before the first save", "after it"])
def test_maintenance_that_is_called_off_ends_nothing(
    when: str, job: NoticedFit, fake: FakeMetadata, undisturbed_fit: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_PREEMPT_PLATFORM", "gce-gpu")

    def come() -> None:
        fake.wait_for_requests(1, "wait_for_change=true")  # It is no news from before the fit.
        fake.gce.maintenance("TERMINATE_ON_HOST_MAINTENANCE")
        job.await_told("notice")

    def go() -> None:
        fake.gce.maintenance("NONE")
        job.await_told("withdrawn")

    def both() -> None:
        come()
        go()

    def later() -> None:
        job.await_told("commit")
        go()

    actions = {(1, 0): both} if when.startswith("before") else {(1, 0): come, (1, 3): later}
    assert job.fit(actions).ended == "finished"
    assert [(plan["reason"], plan["goes_on"]) for plan in job.told("plan")] == [
        ("preempted", True),
        ("finished", False),
    ]
    job.assert_nothing_lost(undisturbed_fit)


FAULTS = ("503", "reset", "rubbish")


@pytest.mark.parametrize(
    ("platform", "question", "happen"),
    [
        ("gce-cpu", "preempted", lambda fake: fake.gce.preempt()),
        pytest.param(
            "azure",
            "scheduledevents",
            lambda fake: fake.azure.schedule("Preempt"),
            marks=pytest.mark.chaos,
        ),
    ],
    ids=["gce", "azure"],
)
def test_a_server_that_fails_changes_nothing_and_is_heard_when_it_is_well(
    platform: str,
    question: str,
    happen: Callable[[FakeMetadata], object],
    job: NoticedFit,
    fake: FakeMetadata,
    undisturbed_fit: Outcome,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KERAS_PREEMPT_PLATFORM", platform)

    def fail() -> None:
        fake.wait_for_requests(1, question)
        asked = sum(question in request.text for request in fake.requests)
        for fault in FAULTS:
            fake.fail(fault, 1, match=question)
        fake.drop_connections()
        fake.wait_for_requests(asked + len(FAULTS) + 1, question, timeout=30)
        happen(fake)
        job.await_told("notice")

    began = os.times().user
    outcome = job.fit({(1, 2): fail}, termination=EXITS)
    assert outcome.ended == f"SystemExit {143 if platform == 'gce-cpu' else 75}"
    assert os.times().user - began < 20, "it was waited for in a busy loop"
    monkeypatch.setenv("KERAS_PREEMPT_PLATFORM", "generic")
    job.fit()
    job.assert_nothing_lost(undisturbed_fit)
