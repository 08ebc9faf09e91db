"""What goes over the wire comes back the same, and nothing else is taken for a message."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_preempt.agreement.messages import PHASES, At, Call, Failure, Kind, Plan, Position, ProtocolError

Message = type[Call] | type[At] | type[Plan]

numbers = st.integers(0, 2**70)
members = st.sets(numbers, max_size=5).map(lambda found: tuple(sorted(found)))
positions = st.builds(Position, numbers, st.sampled_from(PHASES), numbers, st.none() | numbers)
calls = st.builds(Call, numbers, st.sampled_from(Kind), st.text(), st.booleans())
answers = st.builds(At, numbers, st.integers(1, 2**70), st.none() | positions, st.booleans())
plans = st.builds(
    Plan,
    st.integers(1, 2**70),
    st.sampled_from(Kind),
    members.filter(bool),
    members,
    st.none() | st.text(),
    st.booleans(),
)
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 10**400)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(PHASES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(calls | answers | plans)
def test_message_comes_back_as_it_was_sent(message: Call | At | Plan) -> None:
    text = message.encode()
    assert type(message).decode(text) == message
    assert text == json.dumps(json.loads(text), separators=(",", ":"))


@given(st.sampled_from([Call, At, Plan]), st.text() | anything.map(json.dumps))
def test_garbage_is_refused_and_shown(message: Message, text: str) -> None:
    with pytest.raises(ProtocolError, match=r"(?s)Expected .*Received: "):
        message.decode(text)


@given(st.data(), calls | answers | plans, anything)
def test_message_with_one_field_replaced_is_refused_or_means_what_it_says(
    data: st.DataObject, message: Call | At | Plan, value: object
) -> None:
    fields = json.loads(message.encode())
    name = data.draw(st.sampled_from(sorted(fields)))
    fields[name] = value
    try:
        decoded = type(message).decode(json.dumps(fields))
    except ProtocolError:
        return
    assert json.loads(decoded.encode()) == fields


@given(st.data(), calls | answers | plans)
def test_cut_or_extended_message_is_refused(data: st.DataObject, message: Call | At | Plan) -> None:
    text = message.encode()
    fields = json.loads(text)
    fewer = {name: fields[name] for name in sorted(fields)[1:]}
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    for wrong in (json.dumps(fewer), json.dumps({**fields, "more": 1}), cut):
        with pytest.raises(ProtocolError):
            type(message).decode(wrong)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("member", True, "an integer of at least 0 as 'member'"),
        ("member", -1, "an integer of at least 0 as 'member'"),
        ("kind", "sleepy", "one of preempted, periodic"),
        ("kind", 3, "a string as 'kind'"),
        ("reason", None, "a string as 'reason'"),
        ("goes_on", 1, "true or false"),
    ],
)
def test_refusal_names_what_was_expected(name: str, value: object, expected: str) -> None:
    fields = {"member": 0, "kind": "preempted", "reason": "", "goes_on": False, name: value}
    with pytest.raises(ProtocolError, match=expected):
        Call.decode(json.dumps(fields))


def test_plan_without_target_or_writers_must_be_an_abort() -> None:
    empty = Plan(0, Kind.PERIODIC, (), (), "why")
    assert Plan.decode(empty.encode()) == empty
    for plan in (Plan(0, Kind.PERIODIC, (0,), ()), Plan(3, Kind.PERIODIC, (), ())):
        with pytest.raises(ProtocolError, match="without 'abort'"):
            Plan.decode(plan.encode())


@pytest.mark.parametrize(
    "writers",
    [
        [1, 0],
        [1],
        [3, 3, 1, 1],
        [0, 2, 2, 4],
        [0, 1, 2, 3],
        [True, True],
        [-1, 0],
        "01",
        [[0, 0]],
        [0, 2**62],
    ],
)
def test_members_are_ascending_ranges_that_are_apart(writers: object) -> None:
    fields = {**json.loads(Plan(3, Kind.PERIODIC, (0,), ()).encode()), "writers": writers}
    with pytest.raises(ProtocolError, match="'writers'"):
        Plan.decode(json.dumps(fields))


@pytest.mark.parametrize(
    "doomed", [(), (0,), (2000, 4095), tuple(range(512, 1024)), tuple(range(0, 4096, 90))]
)
def test_a_plan_of_thousands_of_workers_stays_below_a_kilobyte(doomed: tuple[int, ...]) -> None:
    writers = tuple(member for member in range(4096) if member not in doomed)
    plan = Plan(10**9, Kind.PREEMPTED, writers, doomed)
    assert Plan.decode(plan.encode()) == plan
    assert len(plan.encode()) < 1000


def test_deeply_nested_text_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a JSON object"):
        Call.decode("[" * 100_000)


@given(st.builds(Failure, numbers, st.text(), st.integers(0, 16), st.text()), st.text(), st.text())
def test_a_failure_is_found_within_a_longer_text(failure: Failure, before: str, after: str) -> None:
    assert Failure.decode(before + failure.encode() + after) == failure


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"member": 1}',
        '{"member": "1", "type": "ValueError", "code": 0, "text": ""}',
        "[" * 100_000,
    ],
)
def test_what_is_no_failure_is_none(text: str) -> None:
    assert Failure.decode(text) is None
    assert Failure.decode(f"keras_preempt: a worker failed: {text}") is None
