from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest

from keras_preempt.notices.gce import GPU_MAINTENANCE_LEAD, GceMaintenance, GcePreemption
from keras_preempt.testing import FakeMetadata
from keras_preempt.testing.server import Reply
from tests.notices.ear import PATIENCE, QUIET, Ear, quick, started

KEY = "/instance/maintenance-event"
TERMINATE, MIGRATE = "TERMINATE_ON_HOST_MAINTENANCE", "MIGRATE_ON_HOST_MAINTENANCE"
HOUR = GPU_MAINTENANCE_LEAD


def waiting(fake: FakeMetadata, count: int = 1) -> None:
    """Waits until the server is holding back an answer: from here on only a change can make it speak."""
    fake.wait_for_requests(count, "wait_for_change=true", PATIENCE)


def asks_for_maintenance(ear: Ear, **options: object) -> GceMaintenance:
    options = {"least_seconds": 0.02, "backoff": quick(), **options}
    return GceMaintenance(ear.notice, on_withdrawn=ear.withdraw, **options)


@pytest.fixture
def maintenance(fake: FakeMetadata, ear: Ear) -> Iterator[GceMaintenance]:
    """A source to which the server is holding back an answer."""
    with started(asks_for_maintenance(ear, lead_seconds=HOUR)) as source:
        waiting(fake)
        yield source


@pytest.fixture
def preemption(fake: FakeMetadata, ear: Ear) -> Iterator[GcePreemption]:
    with started(GcePreemption(ear.notice, least_seconds=0.02, backoff=quick())) as source:
        yield source


def test_termination_for_maintenance_is_heard_within_a_second_with_its_deadline(maintenance, fake, ear):
    published = time.monotonic()
    fake.gce.maintenance(TERMINATE)
    notice = ear.wait()
    assert ear.heard_at[0] - published < 1
    assert notice.deadline == notice.received_at + HOUR
    assert (notice.source, notice.reason) == ("GCE maintenance", TERMINATE)
    assert not notice.hint
    assert notice.id
    assert ear.hears_nothing_new()


def test_preemption_is_heard_within_a_second_and_leaves_half_a_minute(preemption, fake, ear):
    waiting(fake)
    published = time.monotonic()
    fake.gce.preempt()
    notice = ear.wait()
    assert ear.heard_at[0] - published < 1
    assert notice.deadline == notice.received_at + 30
    assert notice.source == "GCE preemption"
    fake.gce.set("instance/preempted", "FALSE")
    assert ear.hears_nothing_new()  # It is not taken back.


def test_a_migration_is_no_notice_and_is_logged(maintenance, fake, ear, caplog):
    caplog.set_level(logging.INFO)
    fake.gce.maintenance(MIGRATE)
    waiting(fake, 2)
    fake.gce.maintenance("NONE")
    waiting(fake, 3)
    assert ear.notices == ear.withdrawn == []
    assert [record.message for record in caplog.records if "another host" in record.message] != []


@pytest.mark.parametrize("instead", ["NONE", MIGRATE])
def test_maintenance_that_is_called_off_withdraws_its_notice(maintenance, fake, ear, instead):
    fake.gce.maintenance(TERMINATE)
    notice = ear.wait()
    fake.gce.maintenance(instead)
    assert ear.wait_withdrawn() == notice
    waiting(fake, 3)
    fake.gce.maintenance(TERMINATE)
    assert ear.wait(2).id != notice.id


def test_the_first_question_does_not_wait_the_next_does_and_meanwhile_nothing_is_asked(
    maintenance, preemption, fake
):
    waiting(fake, 2)
    asked = [request.path for request in fake.requests if KEY in request.path]
    assert asked[0] == "/computeMetadata/v1/instance/maintenance-event"
    assert "timeout_sec=60" in asked[1]
    assert "last_etag=" in asked[1]
    time.sleep(QUIET)
    assert len(fake.requests) == 5  # Two first questions, two that wait, and one for what is planned.


def test_an_announcement_of_unknown_age_may_leave_less_than_the_lead_and_comes_once(fake, ear):
    fake.gce.maintenance(TERMINATE)
    with started(asks_for_maintenance(ear, lead_seconds=HOUR, poll_seconds=1)):
        notice = ear.wait()
        assert notice.deadline == notice.received_at + 60
        waiting(fake, 2)  # The answer that only ended the wait is no news.
    assert len(ear.notices) == 1
    assert ear.withdrawn == []


def test_an_announcement_from_a_time_without_answers_may_be_as_old_as_the_last_answer(maintenance, fake, ear):
    fake.fail("503")
    fake.drop_connections()
    time.sleep(0.2)
    fake.gce.maintenance(TERMINATE)
    fake.recover()
    notice = ear.wait()
    assert notice.deadline is not None
    assert HOUR - PATIENCE < notice.deadline - notice.received_at < HOUR - 0.2


def test_a_server_that_does_not_hold_answers_back_is_not_asked_all_the_time(fake, ear):
    fake.gce.end()  # From now on it answers at once.
    with started(GcePreemption(ear.notice, least_seconds=0.1)):
        began = time.monotonic()
        waiting(fake, 3)
        took = time.monotonic() - began
    assert took >= 0.2


@pytest.mark.parametrize("value", ["", "SOMETHING_NEW", "none", "TERMINATE_ON_HOST_MAINTENANCE x"])
def test_a_value_that_is_not_documented_is_no_notice_and_is_asked_again(maintenance, fake, ear, value):
    fake.gce.maintenance(value)
    fake.wait_for_requests(5, KEY, PATIENCE)
    assert ear.notices == []
    fake.gce.maintenance(TERMINATE)
    ear.wait()


def test_an_answer_that_is_not_googles_is_not_believed(ear, fake):
    # Amazon's server says 401 to what it does not know; a captive portal may say anything, but not this header.
    fake.gce.maintenance(TERMINATE)
    original = fake.gce.answer
    fake.gce.answer = lambda question: Reply(200, TERMINATE.encode(), {"ETag": "1"})
    with started(asks_for_maintenance(ear)):
        fake.wait_for_requests(3, KEY, PATIENCE)
        assert ear.notices == []
        fake.gce.answer = original
        ear.wait()


def test_planned_maintenance_is_logged_once_and_is_no_notice(fake, ear, caplog):
    caplog.set_level(logging.INFO)
    fake.gce.plan_maintenance("2030-01-01T08:00:00Z")
    with started(asks_for_maintenance(ear, poll_seconds=1)):
        waiting(fake, 2)
    assert [r.message for r in caplog.records if "2030" in r.message] == [
        "GCE maintenance: planned for this machine from 2030-01-01T08:00:00Z on."
    ]
    assert ear.notices == []
