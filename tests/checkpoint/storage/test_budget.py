from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
import requests
from google.api_core.exceptions import RetryError, ServiceUnavailable

from keras_preempt.checkpoint.storage import budget
from keras_preempt.checkpoint.storage.budget import LAST_CHANCE, METADATA_SECONDS, Budget
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.storage.gcs_retry import retry_within
from tests.checkpoint.test_commit import FakeTime


@dataclass
class Service:
    """Is down until some moment; each request takes a moment, also one that fails."""

    clock: FakeTime
    back_at: float
    seconds: float = 0.05
    asked_at: list[float] = field(default_factory=list)

    def ask(self) -> str:
        self.asked_at.append(self.clock.now)
        self.clock.now += self.seconds
        if self.clock.now < self.back_at:
            raise ServiceUnavailable("down")  # type: ignore[no-untyped-call]
        return "done"


def under_deadline(clock: FakeTime, seconds: float = 15.0) -> Budget:
    end = clock.now + seconds
    return Budget(60, lambda: end, clock=clock.clock, wait=clock.wait)


@pytest.mark.parametrize(
    ("deadline", "seconds"), [(None, 60.0), (15.0, 15.0), (9999.0, 60.0), (-100.0, LAST_CHANCE)]
)
def test_a_deadline_cuts_a_call_short_but_leaves_a_last_chance(
    deadline: float | None, seconds: float
) -> None:
    clock = FakeTime()
    made = Budget(60, lambda: deadline, clock=clock.clock)
    for passed in (0, 0.5, 45, 45):
        clock.now += passed
        assert made.left == max(seconds - clock.now, 0)


def test_a_deadline_that_appears_in_the_middle_of_a_call_counts() -> None:
    clock = FakeTime()
    deadlines: list[float | None] = [None]
    made = Budget(60, lambda: deadlines[0], clock=clock.clock)
    earlier = made.ending_before(2)
    clock.now += 5
    assert (made.left, earlier.left) == (55, 53)
    deadlines[0] = clock.now + 10
    assert (made.left, earlier.left) == (10, 8)


def test_a_transfer_gets_time_for_its_bytes() -> None:
    assert Budget(600).timeout(64 << 20)[0] > 60 > Budget(600).timeout(0)[0]
    store = GcsStore("gs://bucket", connect=lambda: None)
    assert 0 <= METADATA_SECONDS + (1 << 30) / budget.SLOWEST_TRANSFER - store._budget(1 << 30).left < 5


@pytest.mark.parametrize("seconds", [1.0, 3.0, 15.0, 60.0, 600.0])
@pytest.mark.parametrize("payload", [0, 1000, 16 << 20])
def test_no_single_wait_takes_all_that_is_left(seconds: float, payload: int) -> None:
    connect, read = Budget(seconds).timeout(payload)
    assert 0 < connect <= seconds / 2
    assert 0 < read <= seconds / 3


def test_retries_of_all_requests_together_end_with_the_budget() -> None:
    clock = FakeTime()
    made = Budget(60, clock=clock.clock, wait=clock.wait)
    retry = retry_within(made)
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
    fail = mock.Mock(side_effect=requests.exceptions.InvalidURL("no"))
    with pytest.raises(requests.exceptions.InvalidURL):
        retry_within(Budget(60))(fail)()
    fail.assert_called_once_with()


@pytest.mark.parametrize("payload", [0, 1000, 1 << 20])
def test_a_request_is_tried_again_until_the_deadline_whatever_the_pauses_are(payload: int) -> None:
    for _ in range(100):
        clock = FakeTime()
        service = Service(clock, back_at=clock.now + 14.5)
        assert retry_within(under_deadline(clock), payload)(service.ask)() == "done"
        assert clock.now <= 15


@pytest.mark.parametrize(("payload", "seconds"), [(0, 0.05), (16 << 20, 0.0001)])
def test_the_last_try_has_time_left_and_a_service_that_is_down_is_not_hammered(
    payload: int, seconds: float
) -> None:
    for _ in range(100):
        clock = FakeTime()
        service = Service(clock, back_at=9999.0, seconds=seconds)
        with pytest.raises(ServiceUnavailable):
            retry_within(under_deadline(clock), payload)(service.ask)()
        assert len(service.asked_at) < 60
        if not payload:
            assert 15 - 2 * LAST_CHANCE <= service.asked_at[-1] <= 15 - LAST_CHANCE / 4


def test_a_deadline_that_appears_between_two_tries_ends_them() -> None:
    clock = FakeTime()
    deadlines: list[float | None] = [None]
    made = Budget(60, lambda: deadlines[0], clock=clock.clock, wait=clock.wait)
    service = Service(clock, back_at=9999.0)
    told: list[Exception] = []

    def failed(error: Exception) -> None:
        told.append(error)
        if len(told) == 3:
            deadlines[0] = clock.now + 5

    with pytest.raises(ServiceUnavailable):
        retry_within(made, on_failure=failed)(service.ask)()
    assert deadlines[0] is not None
    assert deadlines[0] - 2 <= service.asked_at[-1] <= deadlines[0]
    assert len(told) == len(service.asked_at)
