"""Every source of notices, heard by a real fit in this process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from keras_preempt.testing import FakeMetadata
from tests.cluster.noticed_fit import NoticedFit, Outcome

AT_ONCE = {"grace_period": 0}
EXITS = {**AT_ONCE, "exit_fn": None}
HOUR = 3600.0


pytestmark = pytest.mark.usefixtures("everything_is_given_back")


@dataclass
class Machine:
    """A machine of a cloud that a fit runs on."""

    job: NoticedFit
    fake: FakeMetadata
    undisturbed: Outcome
    patch: pytest.MonkeyPatch

    def becomes(self, platform: str) -> None:
        self.patch.setenv("KERAS_PREEMPT_PLATFORM", platform)

    def assert_nothing_lost(self) -> None:
        self.job.assert_nothing_lost(self.undisturbed)

    def fit_once_it_has_heard(self, grace_period: float) -> Outcome:
        """A fit that hears of a notice before its first step."""
        heard = len(self.job.told("notice"))
        return self.job.fit(
            on_begin=lambda: self.job.await_told("notice", heard + 1),
            termination={"grace_period": grace_period},
        )

    def goes_on_elsewhere(self) -> None:
        """The next machine has no notice."""
        self.becomes("generic")
        self.job.fit()
        self.assert_nothing_lost()


@pytest.fixture
def on(job: NoticedFit, undisturbed_fit: Outcome, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with FakeMetadata() as fake:
        for name, value in fake.environment.items():
            monkeypatch.setenv(name, value)
        yield Machine(job, fake, undisturbed_fit, monkeypatch)


IN_MAKE_TEST = ("GCE preemption", "AWS interruption", "Azure Preempt", "MIGRATE", "another machine's event")


def each(cases: Iterable[str]) -> list[Any]:
    return [pytest.param(case, marks=() if case in IN_MAKE_TEST else pytest.mark.chaos) for case in cases]


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


@pytest.mark.parametrize("source", each(SOURCES))
def test_a_notice_of_the_platform_ends_the_fit_with_its_exit_status(source: str, on: Machine) -> None:
    platform, status, happen = SOURCES[source]
    on.becomes(platform)

    def come() -> None:
        happen(on.fake)
        on.job.await_told("notice")

    outcome = on.job.fit({(1, 2): come}, termination=EXITS)
    assert outcome.ended == f"SystemExit {status}"
    assert [step[:2] for step in outcome.steps][-1] == (1, 2), "more or less than the step in flight"
    (notice,) = on.job.told("notice")
    assert notice["source"] != "signal"
    on.goes_on_elsewhere()


def test_a_notice_leaves_the_time_that_it_names(on: Machine) -> None:
    """An event of Azure that moves: an hour, and then none."""
    on.becomes("azure")
    event: list[str] = []

    def come() -> None:
        event.append(on.fake.azure.schedule("Terminate", not_before=time.time() + HOUR))
        on.job.await_told("notice")

    def move() -> None:
        on.job.await_told("commit")
        on.fake.azure.begin(event[0])
        on.job.await_told("notice", 2)

    outcome = on.job.fit({(0, 4): come, (1, 4): move})
    assert outcome.ended == "Preempted"
    assert [(plan["reason"], plan["goes_on"]) for plan in on.job.told("plan")] == [
        ("preempted", True),
        ("deadline", False),
    ]
    assert [commit["step"] for commit in on.job.told("commit")] == [5, 11]
    on.goes_on_elsewhere()


def test_a_notice_that_was_there_first_and_leaves_no_time_ends_the_fit_before_its_first_step(
    on: Machine,
) -> None:
    """On a machine that is doomed already, before and after a checkpoint is there."""
    on.becomes("gce-cpu")
    on.fake.gce.preempt()
    for _ in range(2):
        outcome = on.fit_once_it_has_heard(0)
        assert (outcome.ended, outcome.steps) == ("Preempted", [])
    on.goes_on_elsewhere()


def test_a_notice_that_was_there_first_and_leaves_time_is_saved_for_at_once_and_trained_on(
    on: Machine,
) -> None:
    """On a machine that is doomed already, but not before training is over."""
    on.becomes("gce-cpu")
    on.fake.gce.preempt()
    assert on.fit_once_it_has_heard(HOUR).ended == "finished"
    first, *_ = on.job.told("plan")
    assert (first["reason"], first["goes_on"]) == ("preempted", True)
    assert on.job.told("commit")[0]["step"] == 0
    again = on.fit_once_it_has_heard(HOUR)
    assert (again.ended, again.steps) == ("finished", [])
    on.assert_nothing_lost()


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


@pytest.mark.parametrize("what", each(ENDS_NOTHING))
def test_what_ends_no_machine_ends_no_training(what: str, on: Machine) -> None:
    platform, question, happen = ENDS_NOTHING[what]
    on.becomes(platform)

    def act() -> None:
        on.fake.wait_for_requests(1, question)
        # A question that is held back until something changes is answered with what happens.
        asked = sum(
            question in request.text and not ("wait_for_change" in request.text and request.status is None)
            for request in on.fake.requests
        )
        happen(on.fake)
        # A question that began after the answer to one that began after it happened.
        on.fake.wait_for_requests(asked + 2, question)

    assert on.job.fit({(1, 2): act}, termination=AT_ONCE).ended == "finished"
    assert on.job.told("notice") == []
    assert [plan["reason"] for plan in on.job.told("plan")] == ["finished"]
    on.assert_nothing_lost()


def test_a_rebalance_recommendation_saves_and_lets_training_go_on(on: Machine) -> None:
    on.becomes("aws")
    on.fake.aws.rebalance()
    outcome = on.job.fit(
        {(0, 2): lambda: on.job.await_told("plan"), (1, 2): lambda: on.job.await_told("commit")}
    )
    assert outcome.ended == "finished"
    assert [plan["reason"] for plan in on.job.told("plan")] == ["periodic", "finished"]
    assert on.job.told("commit")[0]["step"] <= 3
    on.assert_nothing_lost()


@pytest.mark.parametrize("saved", [pytest.param(False, marks=pytest.mark.chaos), True])
def test_maintenance_that_is_called_off_ends_nothing(saved: bool, on: Machine) -> None:
    on.becomes("gce-gpu")

    def come() -> None:
        on.fake.wait_for_requests(1, "wait_for_change=true")  # It is no news from before the fit.
        on.fake.gce.maintenance("TERMINATE_ON_HOST_MAINTENANCE")
        on.job.await_told("notice")
        if not saved:
            go()

    def go() -> None:
        if saved:
            on.job.await_told("commit")
        on.fake.gce.maintenance("NONE")
        on.job.await_told("withdrawn")

    assert on.job.fit({(1, 0): come, **({(1, 3): go} if saved else {})}).ended == "finished"
    assert [(plan["reason"], plan["goes_on"]) for plan in on.job.told("plan")] == [
        ("preempted", True),
        ("finished", False),
    ]
    on.assert_nothing_lost()


FAULTS = ("503", "reset", "rubbish")


@pytest.mark.parametrize(
    ("source", "question"),
    [
        ("GCE preemption", "preempted"),
        pytest.param("Azure Preempt", "scheduledevents", marks=pytest.mark.chaos),
    ],
)
def test_a_server_that_fails_changes_nothing_and_is_heard_when_it_is_well(
    source: str, question: str, on: Machine
) -> None:
    platform, status, happen = SOURCES[source]
    on.becomes(platform)

    def fail() -> None:
        on.fake.wait_for_requests(1, question)
        asked = sum(question in request.text for request in on.fake.requests)
        for fault in FAULTS:
            on.fake.fail(fault, 1, match=question)
        on.fake.drop_connections()
        on.fake.wait_for_requests(asked + len(FAULTS) + 1, question, timeout=30)
        happen(on.fake)
        on.job.await_told("notice")

    began = os.times().user
    outcome = on.job.fit({(1, 2): fail}, termination=EXITS)
    assert outcome.ended == f"SystemExit {status}"
    assert os.times().user - began < 20, "it was waited for in a busy loop"
    on.goes_on_elsewhere()
