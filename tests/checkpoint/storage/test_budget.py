from __future__ import annotations

from typing import Any

import pytest
import requests
from google.api_core.exceptions import RetryError, ServiceUnavailable

from keras_preempt.checkpoint.storage import budget
from keras_preempt.checkpoint.storage.budget import LAST_CHANCE, METADATA_SECONDS, Budget


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time

    def wait(self, seconds: float) -> None:
        self.time += seconds


class Service:
    """Is down until some moment; each request takes a moment, also one that fails."""

    def __init__(self, clock: Clock, back_at: float, seconds: float = 0.05) -> None:
        self._clock = clock
        self._back_at = back_at
        self._seconds = seconds
        self.asked_at: list[float] = []

    def ask(self) -> str:
        self.asked_at.append(self._clock.time)
        self._clock.time += self._seconds
        if self._clock.time < self._back_at:
            raise ServiceUnavailable("down")  # type: ignore[no-untyped-call]
        return "done"


def under_deadline(clock: Clock, seconds: float = 15.0) -> Budget:
    end = clock.time + seconds
    return Budget(60, lambda: end, clock=clock, wait=clock.wait)


def test_a_call_gets_its_usual_time_when_no_deadline_is_near() -> None:
    clock = Clock()
    made = Budget(60, clock=clock)
    assert made.left == 60
    clock.time += 45
    assert made.left == 15
    clock.time += 45
    assert made.left == 0


@pytest.mark.parametrize(("deadline", "seconds"), [(1015.0, 15.0), (9999.0, 60.0), (900.0, LAST_CHANCE)])
def test_a_deadline_cuts_it_short_but_leaves_a_last_chance(deadline: float, seconds: float) -> None:
    clock = Clock()
    assert Budget(60, lambda: deadline, clock=clock).left == seconds


def test_a_deadline_that_appears_in_the_middle_of_a_call_counts() -> None:
    clock = Clock()
    deadlines: list[float | None] = [None]
    made = Budget(60, lambda: deadlines[0], clock=clock)
    earlier = made.ending_before(2)
    clock.time += 5
    assert (made.left, earlier.left) == (55, 53)
    deadlines[0] = clock.time + 10
    assert (made.left, earlier.left) == (10, 8)


def test_a_transfer_gets_time_for_its_bytes() -> None:
    assert 0 <= METADATA_SECONDS + (1 << 30) / budget.SLOWEST_TRANSFER - Budget.for_transfer(1 << 30).left < 5


@pytest.mark.parametrize("seconds", [1.0, 3.0, 15.0, 60.0, 600.0])
@pytest.mark.parametrize("payload", [0, 1000, 16 << 20])
def test_no_single_wait_takes_all_that_is_left(seconds: float, payload: int) -> None:
    connect, read = Budget(seconds).timeout(payload)
    assert 0 < connect <= seconds / 2
    assert 0 < read <= seconds / 3


def test_the_time_for_sending_grows_with_what_is_sent() -> None:
    assert Budget(600).timeout(64 << 20)[0] > 60 > Budget(600).timeout(0)[0]


def test_retries_of_all_requests_together_end_with_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_FIRST_DELAY", 0.01)
    monkeypatch.setattr(budget, "_LONGEST_DELAY", 0.02)
    made = Budget(1.5)
    retry = made.retry()
    tries: list[float] = []

    def fail() -> Any:
        tries.append(made.left)
        raise ServiceUnavailable("busy")  # type: ignore[no-untyped-call]

    for _ in range(10):  # the chunks of an upload, for example
        with pytest.raises((RetryError, ServiceUnavailable)):
            retry(fail)()
    assert len(tries) > 10
    assert tries[-1] > 0.2


def test_an_error_that_retrying_cannot_cure_is_not_retried() -> None:
    tries: list[int] = []

    def fail() -> Any:
        tries.append(1)
        raise requests.exceptions.InvalidURL("no")

    with pytest.raises(requests.exceptions.InvalidURL):
        Budget(60).retry()(fail)()
    assert len(tries) == 1


@pytest.mark.parametrize("turn", range(100))
@pytest.mark.parametrize("payload", [0, 1000, 1 << 20])
def test_a_request_is_tried_again_until_the_deadline_whatever_the_pauses_are(turn: int, payload: int) -> None:
    clock = Clock()
    service = Service(clock, back_at=clock.time + 14.5)
    assert under_deadline(clock).retry(payload)(service.ask)() == "done"
    assert clock.time <= 1015


@pytest.mark.parametrize("turn", range(100))
def test_the_last_try_has_time_left_and_none_begins_after_the_deadline(turn: int) -> None:
    clock = Clock()
    service = Service(clock, back_at=9999.0)
    with pytest.raises(ServiceUnavailable):
        under_deadline(clock).retry()(service.ask)()
    assert 1015 - 2 * budget.LAST_CHANCE <= service.asked_at[-1] <= 1015 - budget.LAST_CHANCE / 4
    assert len(service.asked_at) < 60  # It does not hammer a service that is down.


def test_a_large_request_that_fails_at_once_is_not_hurried_at_the_end() -> None:
    clock = Clock()
    service = Service(clock, back_at=9999.0, seconds=0.0001)
    with pytest.raises(ServiceUnavailable):
        under_deadline(clock).retry(16 << 20)(service.ask)()
    assert len(service.asked_at) < 60


def test_a_deadline_that_appears_between_two_tries_ends_them() -> None:
    clock = Clock()
    deadlines: list[float | None] = [None]
    made = Budget(60, lambda: deadlines[0], clock=clock, wait=clock.wait)
    service = Service(clock, back_at=9999.0)
    told: list[Exception] = []

    def failed(error: Exception) -> None:
        told.append(error)
        if len(told) == 3:
            deadlines[0] = clock.time + 5

    with pytest.raises(ServiceUnavailable):
        made.retry(on_failure=failed)(service.ask)()
    assert deadlines[0] is not None
    assert deadlines[0] - 2 <= service.asked_at[-1] <= deadlines[0]
    assert len(told) == len(service.asked_at)


def test_each_try_gets_the_timeouts_of_its_own_moment() -> None:
    clock = Clock()
    made = under_deadline(clock)
    seen: list[tuple[float, float] | None] = []

    def silent() -> None:
        seen.append(budget.timeouts_of_this_try())
        assert seen[-1] is not None
        clock.time += seen[-1][1]
        raise requests.exceptions.ReadTimeout("silence")

    with pytest.raises(requests.exceptions.ReadTimeout):
        made.retry()(silent)()
    reads = [timeouts[1] for timeouts in seen if timeouts is not None]
    assert reads == sorted(reads, reverse=True)
    assert len(reads) > 4
    assert clock.time <= 1015 + budget.LAST_CHANCE
    assert budget.timeouts_of_this_try() is None
