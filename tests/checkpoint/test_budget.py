from __future__ import annotations

from typing import Any

import pytest
import requests
from google.api_core.exceptions import RetryError, ServiceUnavailable

from keras_preempt.checkpoint import budget
from keras_preempt.checkpoint.budget import LAST_CHANCE, METADATA_SECONDS, Budget


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


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
    assert Budget(60, lambda: deadline, now=clock, clock=clock).left == seconds


def test_a_deadline_that_appears_in_the_middle_of_a_call_counts() -> None:
    clock = Clock()
    deadlines: list[float | None] = [None]
    made = Budget(60, lambda: deadlines[0], now=clock, clock=clock)
    half = made.share(0.5)
    clock.time += 5
    assert (made.left, half.left) == (55, 25)
    deadlines[0] = clock.time + 10
    assert (made.left, half.left) == (10, 10)


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
