from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_preempt.notices.azure import AzureScheduledEvents, parse_document
from keras_preempt.testing import FakeMetadata
from tests.notices.ear import PATIENCE, POLL, Ear, quick, started, wait_for_more

EVENTS, NAME = "/metadata/scheduledevents", "/metadata/instance/compute"


def source(ear: Ear, **options: object) -> AzureScheduledEvents:
    options = {"poll_seconds": POLL, "backoff": quick(), **options}
    return AzureScheduledEvents(ear.notice, on_withdrawn=ear.withdraw, **options)


@pytest.fixture
def azure(fake: FakeMetadata, ear: Ear) -> Iterator[AzureScheduledEvents]:
    with started(source(ear)) as asking:
        yield asking
    assert {request.method for request in fake.requests} == {"GET"}, "events are never acknowledged"


def soon(seconds: int) -> float:
    return float(int(time.time()) + seconds)


@pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Reboot", "Redeploy"])
def test_an_event_that_ends_the_machine_is_heard_at_the_next_question_with_its_deadline(
    azure, fake, ear, kind
):
    wait_for_more(fake, EVENTS)
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
    wait_for_more(fake, EVENTS)
    fake.azure.begin(identity)
    wait_for_more(fake, EVENTS)
    fake.azure.cancel(identity)
    wait_for_more(fake, EVENTS)
    assert ear.notices == ear.withdrawn == []
    assert len([r for r in caplog.records if f"{kind} of this machine" in r.message]) == 1


def test_an_event_of_another_machine_is_no_notice(azure, fake, ear):
    identity = fake.azure.schedule("Preempt", resources=["fake-vm_1", "fake-vm"])
    wait_for_more(fake, EVENTS)
    fake.azure.cancel(identity)
    wait_for_more(fake, EVENTS)
    assert ear.notices == ear.withdrawn == []
    # This one is found among others, whatever its capital letters.
    fake.azure.schedule("Terminate", resources=["another", "FAKE-VM_0"])
    ear.wait()


def test_an_event_that_disappears_withdraws_its_notice_and_another_stands(azure, fake, ear):
    fake.azure.schedule("Reboot", resources=["another"])
    reboot = fake.azure.schedule("Reboot", not_before=soon(900))
    first = ear.wait()
    preempt = fake.azure.schedule("Preempt", not_before=soon(30))
    second = ear.wait(2)
    fake.azure.cancel(reboot)
    assert ear.wait_withdrawn() == first
    assert ear.hears_nothing_new()
    fake.azure.cancel(preempt)
    assert ear.wait_withdrawn(2) == second
    assert ear.hears_nothing_new()


def test_an_event_that_is_moved_or_begins_comes_again_with_its_id_and_new_deadline(azure, fake, ear):
    identity = fake.azure.schedule("Terminate", not_before=soon(600))
    ear.wait()
    at = soon(120)
    fake.azure.move(identity, at)
    notice = ear.wait(2)
    assert (notice.id, notice.deadline) == (identity, at)
    fake.azure.begin(identity)
    notice = ear.wait(3)
    assert (notice.id, notice.deadline) == (identity, notice.received_at)
    assert notice.reason == "Terminate has started"
    assert ear.hears_nothing_new()
    assert ear.withdrawn == []


def test_an_event_that_has_begun_is_due_now_or_at_the_earlier_time_that_was_announced(azure, fake, ear):
    fake.azure.schedule("Preempt", started=True)
    notice = ear.wait()
    assert notice.deadline == notice.received_at
    at = soon(-5)
    identity = fake.azure.schedule("Terminate", not_before=at)
    ear.wait(2)
    fake.azure.begin(identity)
    assert ear.wait(3).deadline == at
    fake.azure.cancel(identity)
    ear.wait_withdrawn()


def test_the_first_answer_may_take_long_and_nobody_is_warned(fake, ear, caplog):
    fake.fail("stall", 1, match=EVENTS, seconds=0.7)
    fake.azure.schedule("Preempt")
    with started(source(ear, answer_seconds=0.5)):
        ear.wait()
    assert caplog.records == []


def test_a_later_answer_may_not(fake, ear, caplog):
    with started(source(ear, answer_seconds=0.2)):
        wait_for_more(fake, EVENTS)
        fake.fail("stall", match=EVENTS)
        wait_for_more(fake, EVENTS, 2)  # It was asked again, and so did not wait for ever.
    assert "none in time" in caplog.text


def test_the_machines_name_is_asked_until_it_is_known(fake, ear):
    fake.azure.schedule("Preempt")
    fake.fail("503", match=NAME)
    with started(source(ear)):
        fake.wait_for_requests(3, NAME, PATIENCE)
        assert ear.notices == []
        fake.recover()
        ear.wait()
        wait_for_more(fake, EVENTS)
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
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
DEEP = st.deferred(
    lambda: st.lists(JSON, max_size=3) | st.dictionaries(st.text(max_size=9), JSON, max_size=3)
)
JSON = PLAIN | DEEP


def read(*events: object) -> object:
    return parse_document({"DocumentIncarnation": 1, "Events": list(events)})


def test_the_example_of_the_documentation_is_read():
    document = read(EVENT)
    (event,) = document.events
    assert (document.incarnation, document.problem) == (1, None)
    assert (event.id, event.kind, event.resources, event.started) == ("A", "Preempt", ("vm",), False)
    assert event.not_before == 1474309787.0
    for at_once in ("", " ", None):
        assert read({**EVENT, "NotBefore": at_once}).events[0].not_before is None


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
        parse_document({"DocumentIncarnation": 1, "Events": [{**EVENT, field: value}], **{field: value}})


@given(text=st.text(alphabet="MonSep 0123456789:,+-GT", max_size=40))
def test_whatever_the_time_says_is_read_or_a_problem(text):
    document = read({**EVENT, "NotBefore": text})
    assert len(document.events) == (document.problem is None)
