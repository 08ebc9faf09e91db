"""A function of the user is given every event, and can harm nothing."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from keras_preempt.report import delivery
from keras_preempt.report.delivery import Delivery, check_on_event
from keras_preempt.report.event import Event

PATIENCE = 60.0


def event(number: int) -> Event:
    return Event("commit", float(number), 0, 1, {"step": number})


@pytest.fixture(autouse=True)
def _leaves_no_thread() -> Iterator[None]:
    yield
    limit = time.monotonic() + PATIENCE
    while any(thread.name == "keras_preempt-events" for thread in threading.enumerate()):
        assert time.monotonic() < limit
        time.sleep(0.005)


def test_all_events_are_delivered_in_order_from_one_other_thread_before_the_end() -> None:
    found: list[int | None] = []
    threads: set[str] = set()

    def take(event: Event) -> None:
        found.append(event.step)
        threads.add(threading.current_thread().name)

    deliver = Delivery(take)
    for number in range(500):
        deliver.put(event(number))
    deliver.stop(None)
    assert found == list(range(500))
    assert threads == {"keras_preempt-events"}


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(3), KeyboardInterrupt()])
def test_what_it_raises_is_logged_once_and_the_next_events_come_all_the_same(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[int | None] = []

    def fail(event: Event) -> None:
        found.append(event.step)
        raise error

    deliver = Delivery(fail)
    for number in range(3):
        deliver.put(event(number))
    deliver.stop(None)
    assert found == [0, 1, 2]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "on_event has failed at 'commit'" in caplog.text


def test_nobody_waits_for_a_slow_function_and_what_is_too_much_is_dropped_with_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivery, "MOST_WAITING", 3)
    monkeypatch.setattr(delivery, "DRAIN_SECONDS", 0.01)
    found: list[int | None] = []
    began, free = threading.Event(), threading.Event()

    def take(event: Event) -> None:
        found.append(event.step)
        began.set()
        assert free.wait(PATIENCE)

    deliver = Delivery(take)
    deliver.put(event(0))
    assert began.wait(PATIENCE)
    for number in range(1, 7):
        deliver.put(event(number))  # Comes back although the function does not.
    assert "too slow: 3 events wait" in caplog.text
    deliver.stop(None)
    assert "still busy after 0 s: it is not waited for, and 3 further events are dropped" in caplog.text
    free.set()
    deliver._thread and deliver._thread.join(PATIENCE)
    assert found == [0]


def test_the_end_waits_no_longer_than_the_machine_is_there() -> None:
    free = threading.Event()
    deliver = Delivery(lambda event: free.wait(PATIENCE))
    deliver.put(event(0))
    deliver.stop(-1.0)  # With the five seconds of an end without a notice, the next line would come too late.
    thread = deliver._thread
    assert thread is not None
    assert thread.is_alive()
    free.set()


def test_what_comes_after_the_end_is_not_delivered_and_without_events_there_is_no_thread() -> None:
    found: list[Event] = []
    deliver = Delivery(found.append)
    deliver.stop(None)
    deliver.put(event(0))
    assert deliver._thread is None
    assert found == []


def test_a_forked_child_delivers_nothing() -> None:
    found: list[Event] = []
    deliver = Delivery(found.append)
    child = os.fork()
    if child == 0:
        deliver.put(event(0))
        os._exit(0 if deliver._thread is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


async def coroutine(event: Event) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("print", "a function of one argument"),
        (lambda: None, "called with one: too many positional arguments"),
        (lambda event, more: None, "missing a required argument: 'more'"),
        (coroutine, "only makes a coroutine"),
    ],
    ids=["no function", "no argument", "two arguments", "a coroutine"],
)
def test_what_cannot_be_called_with_an_event_is_refused_at_once(wrong: Any, says: str) -> None:
    with pytest.raises(ValueError, match="Expected on_event to be a") as raised:
        check_on_event(wrong)
    assert says in str(raised.value)


@pytest.mark.parametrize("right", [None, print, lambda event: None, [].append, lambda event, more=1: None])
def test_anything_that_can_is_taken(right: Any) -> None:
    check_on_event(right)


# -- The value -------------------------------------------------------------------------------------------


def test_an_event_is_frozen_comparable_and_goes_to_other_processes() -> None:
    one = event(7)
    with pytest.raises(AttributeError):
        one.kind = "start"  # type: ignore[misc]
    with pytest.raises(TypeError):
        one.fields["step"] = 8  # type: ignore[index]
    assert pickle.loads(pickle.dumps(one)) == one == event(7) != event(8)
    assert one.to_json() == {"event": "commit", "time": 7.0, "worker": 0, "start": 1, "step": 7}


@pytest.mark.parametrize(
    ("fields", "step"),
    [({"step": 7}, 7), ({"checkpoint": "step-00000007/00001-0000"}, 7), ({"saved": None}, None), ({}, None)],
)
def test_the_step_is_what_the_event_says_or_that_of_its_checkpoint(
    fields: dict[str, Any], step: int | None
) -> None:
    assert Event("answered", 0.0, 0, 1, fields).step == step
