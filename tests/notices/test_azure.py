from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_preempt.notices.azure import AzureScheduledEvents, read_document
from keras_preempt.testing import FakeMetadata
from tests.notices.ear import PATIENCE, POLL, Ear, quick

EVENTS, NAME = "/metadata/scheduledevents", "/metadata/instance/compute"


@pytest.fixture
def azure(fake: FakeMetadata, ear: Ear) -> Iterator[AzureScheduledEvents]:
    source = AzureScheduledEvents(ear.notice, on_withdrawn=ear.withdraw, poll_seconds=POLL, backoff=quick())
    source.start()
    yield source
    source.stop()


def polls(fake: FakeMetadata, more: int = 3) -> None:
    """Waits for some more questions."""
    fake.wait_for_requests(sum(EVENTS in r.text for r in fake.requests) + more, EVENTS, PATIENCE)


def soon(seconds: int) -> float:
    return float(int(time.time()) + seconds)


@pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Reboot", "Redeploy"])
def test_an_event_that_ends_the_machine_is_heard_at_the_next_question_with_its_deadline(
    azure, fake, ear, kind
):
    polls(fake)
    at = soon(300)
    published = time.monotonic()
    identity = fake.azure.schedule(kind, not_before=at)
    notice = ear.wait()
    assert ear.heard_at[0] - published < 1 + POLL
    assert notice.deadline == at
    assert (notice.source, notice.reason) == ("Azure scheduled events", f"{kind} is scheduled")
    assert notice.id == identity
    assert not notice.hint
    assert ear.hears_nothing_new()


@pytest.mark.parametrize("kind", ["Freeze", "SomethingNew"])
def test_an_event_that_does_not_end_the_machine_is_logged_once_and_is_no_notice(
    azure, fake, ear, caplog, kind
):
    caplog.set_level(logging.INFO)
    identity = fake.azure.schedule(kind)
    polls(fake)
    fake.azure.begin(identity)
    polls(fake)
    fake.azure.cancel(identity)
    polls(fake)
    assert ear.notices == ear.withdrawn == []
    assert len([r for r in caplog.records if f"{kind} of this machine" in r.message]) == 1


def test_an_event_of_another_machine_is_no_notice(azure, fake, ear):
    identity = fake.azure.schedule("Preempt", resources=["fake-vm_1", "fake-vm"])
    polls(fake)
    fake.azure.cancel(identity)
    polls(fake)
    assert ear.notices == ear.withdrawn == []


def test_this_machine_is_found_among_others_whatever_its_capital_letters(azure, fake, ear):
    fake.azure.schedule("Terminate", resources=["another", "FAKE-VM_0"])
    ear.wait()


def test_an_event_that_disappears_withdraws_its_notice(azure, fake, ear):
    first = fake.azure.schedule("Preempt")
    fake.azure.schedule("Reboot", resources=["another"])
    notice = ear.wait()
    fake.azure.cancel(first)
    assert ear.wait_withdrawn() == notice
    assert ear.hears_nothing_new()


def test_one_of_two_events_is_cancelled_and_the_other_stands(azure, fake, ear):
    reboot = fake.azure.schedule("Reboot", not_before=soon(900))
    ear.wait()
    fake.azure.schedule("Preempt", not_before=soon(30))
    ear.wait(2)
    fake.azure.cancel(reboot)
    assert ear.wait_withdrawn().id == reboot
    assert ear.hears_nothing_new()


def test_an_event_that_is_moved_comes_again_with_its_id_and_new_deadline(azure, fake, ear):
    identity = fake.azure.schedule("Redeploy", not_before=soon(600))
    ear.wait()
    at = soon(120)
    fake.azure.move(identity, at)
    notice = ear.wait(2)
    assert (notice.id, notice.deadline) == (identity, at)
    assert ear.withdrawn == []


def test_an_event_that_begins_is_due_now_and_cannot_be_cancelled(azure, fake, ear):
    identity = fake.azure.schedule("Terminate", not_before=soon(600))
    ear.wait()
    fake.azure.begin(identity)
    notice = ear.wait(2)
    assert (notice.id, notice.deadline) == (identity, notice.received_at)
    assert notice.reason == "Terminate has started"
    assert ear.hears_nothing_new()


def test_an_event_that_begins_after_its_time_is_not_due_later_than_announced(azure, fake, ear):
    at = soon(-5)
    identity = fake.azure.schedule("Terminate", not_before=at)
    ear.wait()
    fake.azure.begin(identity)
    assert ear.wait(2).deadline == at


def test_an_event_that_has_begun_before_it_was_seen_is_due_now(azure, fake, ear):
    fake.azure.schedule("Preempt", started=True)
    notice = ear.wait()
    assert notice.deadline == notice.received_at


def test_events_are_read_and_never_acknowledged(azure, fake, ear):
    identity = fake.azure.schedule("Preempt")
    ear.wait()
    fake.azure.begin(identity)
    ear.wait(2)
    fake.azure.cancel(identity)
    ear.wait_withdrawn()
    assert {request.method for request in fake.requests} == {"GET"}


def test_the_first_answer_may_take_long_and_nobody_is_warned(fake, ear, caplog):
    fake.fail("stall", 1, match=EVENTS, seconds=1.5)
    fake.azure.schedule("Preempt")
    source = AzureScheduledEvents(
        ear.notice, on_withdrawn=ear.withdraw, poll_seconds=POLL, answer_seconds=1.0
    )
    source.start()
    ear.wait()
    source.stop()
    assert caplog.records == []


def test_a_later_answer_may_not(fake, ear, caplog):
    source = AzureScheduledEvents(
        ear.notice, on_withdrawn=ear.withdraw, poll_seconds=POLL, answer_seconds=0.2, backoff=quick()
    )
    source.start()
    polls(fake)
    fake.fail("stall", match=EVENTS)
    polls(fake, 2)  # It was asked again, and so did not wait for ever.
    source.stop()
    assert "none in time" in caplog.text


def test_the_machines_name_is_asked_until_it_is_known(fake, ear):
    fake.azure.schedule("Preempt")
    fake.fail("503", match=NAME)
    source = AzureScheduledEvents(ear.notice, on_withdrawn=ear.withdraw, poll_seconds=POLL, backoff=quick())
    source.start()
    fake.wait_for_requests(3, NAME, PATIENCE)
    assert ear.notices == []
    fake.recover()
    ear.wait()
    polls(fake)
    source.stop()
    asked = sum(NAME in request.text for request in fake.requests)
    assert asked == sum(request.fault == "503" for request in fake.requests) + 1


@pytest.mark.parametrize(
    "change", [{"EventType": 1}, {"NotBefore": "soon"}, {"EventStatus": "?"}, {"Resources": "fake-vm_0"}]
)
def test_an_event_that_makes_no_sense_hides_no_other_and_withdraws_none(azure, fake, ear, change):
    first = fake.azure.schedule("Preempt")
    notice = ear.wait()
    broken = {"EventId": first, "EventType": "Preempt", "Resources": [fake.azure.name]}
    fake.azure.put(first, {**broken, "EventStatus": "Scheduled", "NotBefore": "", **change})
    fake.azure.schedule("Reboot")
    assert ear.wait(2).reason == "Reboot is scheduled"
    assert ear.hears_nothing_new()
    assert ear.withdrawn == []
    fake.azure.cancel(first)
    assert ear.wait_withdrawn() == notice


# -- What the service says -------------------------------------------------------------------------------

EVENT = {
    "EventId": "A",
    "EventType": "Preempt",
    "ResourceType": "VirtualMachine",
    "Resources": ["vm"],
    "EventStatus": "Scheduled",
    "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT",
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


def read(*events: object) -> object:
    return read_document({"DocumentIncarnation": 1, "Events": list(events)})


def test_the_example_of_the_documentation_is_read():
    document = read(EVENT)
    (event,) = document.events
    assert (document.incarnation, document.problem) == (1, None)
    assert (event.id, event.kind, event.resources, event.started) == ("A", "Preempt", ("vm",), False)
    assert event.not_before == 1474309787.0


@pytest.mark.parametrize("empty", ["", " ", None])
def test_an_event_without_a_time_is_due_at_once(empty):
    assert read({**EVENT, "NotBefore": empty}).events[0].not_before is None


@pytest.mark.parametrize(
    "text", ["soon", "Mon, 99 Sep 2016 18:29:47 GMT", "2016", "Mon, 19 Sep 99999 18:29:47 GMT"]
)
def test_a_time_that_is_none_makes_the_event_a_problem(text):
    document = read({**EVENT, "NotBefore": text}, {**EVENT, "EventId": "B"})
    assert [event.id for event in document.events] == ["B"]
    assert "NotBefore such as" in document.problem


@given(field=st.sampled_from([*EVENT, "DocumentIncarnation", "Events"]), value=JSON)
def test_whatever_the_service_says_is_read_or_refused(field, value):
    with contextlib.suppress(ValueError):
        read_document({"DocumentIncarnation": 1, "Events": [{**EVENT, field: value}], **{field: value}})


@given(text=st.text(alphabet="MonSep 0123456789:,+-GT", max_size=40))
def test_whatever_the_time_says_is_read_or_a_problem(text):
    document = read({**EVENT, "NotBefore": text})
    assert len(document.events) == (document.problem is None)
