from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from keras_preempt.agreement.coordinator import CoordinationTimeout, Coordinator, LocalCoordinator
from tests.checkpoint.round_table import together


def test_one_process_is_member_0_of_1_and_needs_nobody_to_report_an_error() -> None:
    coordinator: Coordinator = LocalCoordinator()
    assert (coordinator.member, coordinator.members) == (0, 1)
    coordinator.report_error("lost")


def test_of_many_threads_exactly_one_inserts_and_what_it_inserts_is_never_changed() -> None:
    coordinator = LocalCoordinator()
    inserted = together([lambda n=n: coordinator.put_if_absent("call", str(n)) for n in range(8)])
    assert sorted(inserted) == [False] * 7 + [True]
    assert not coordinator.put_if_absent("call", "later")
    assert coordinator.wait_for("call", 0) == str(inserted.index(True))


def test_a_wait_returns_as_soon_as_the_key_is_there() -> None:
    coordinator = LocalCoordinator()
    with ThreadPoolExecutor(1) as pool:
        value = pool.submit(coordinator.wait_for, "plan", 10)
        coordinator.put_if_absent("other", "x")  # wakes it for nothing
        coordinator.put_if_absent("plan", "y")
        assert value.result() == "y"


@pytest.mark.parametrize("timeout", [0.0, -1.0, 0.05])
def test_a_wait_ends_in_time(timeout: float) -> None:
    began = time.monotonic()
    with pytest.raises(CoordinationTimeout, match="plan"):
        LocalCoordinator().wait_for("plan", timeout)
    assert time.monotonic() - began >= timeout


def test_deleting_removes_what_lies_below_and_nothing_beside() -> None:
    coordinator = LocalCoordinator()
    for key in ("fit/1", "fit/1/call", "fit/1/at/0", "fit/10/call", "fit/2/call"):
        coordinator.put_if_absent(key, "x")
    coordinator.delete("fit/1")
    for key in ("fit/1", "fit/1/call", "fit/1/at/0"):
        assert coordinator.put_if_absent(key, "again"), key
    for key in ("fit/10/call", "fit/2/call"):
        assert not coordinator.put_if_absent(key, "again"), key
    coordinator.delete("nothing")
