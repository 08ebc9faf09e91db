from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_preempt.notices.azure_events import read_document

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
