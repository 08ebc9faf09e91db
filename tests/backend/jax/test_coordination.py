"""Write-once keys on JAX's coordination service, against a real one."""

from __future__ import annotations

import itertools
import threading
import time
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from keras_preempt.agreement.coordinator import CoordinationLost, CoordinationTimeout
from keras_preempt.backend.jax import coordination, distributed
from keras_preempt.backend.jax.coordination import JaxCoordinator

_numbers = itertools.count()


@pytest.fixture
def key() -> str:
    """A key that no other test has."""
    return f"test/{next(_numbers)}"


@pytest.fixture
def coordinator() -> JaxCoordinator:
    return JaxCoordinator(0, 1)


def test_of_several_threads_one_inserts_and_later_inserts_change_nothing(
    coordinator: JaxCoordinator, key: str
) -> None:
    won: list[str] = []

    def insert(name: str) -> None:
        if coordinator.put_if_absent(key, name):
            won.append(name)

    threads = [threading.Thread(target=insert, args=[str(number)]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not coordinator.put_if_absent(key, "later")
    assert won == [coordinator.wait_for(key, 10)]


def test_a_key_that_does_not_come_is_a_timeout(coordinator: JaxCoordinator, key: str) -> None:
    began = time.monotonic()
    with pytest.raises(CoordinationTimeout, match=key):
        coordinator.wait_for(key, 0.2)
    assert time.monotonic() - began >= 0.2
    with pytest.raises(CoordinationTimeout):
        coordinator.wait_for(key, 0)


def test_a_wait_without_a_limit_is_woken_and_holds_no_lock(
    coordinator: JaxCoordinator, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination, "LONGEST_WAIT", 0.05)  # It is made of several.
    waits: list[Any] = []
    client = SimpleNamespace(
        blocking_key_value_get=lambda name, limit: (
            waits.append(limit) or coordinator._client.blocking_key_value_get(name, limit)
        )
    )
    waiting = JaxCoordinator(0, 1)
    waiting._client = client
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(waiting.wait_for(key, None)))
    thread.start()
    while len(waits) < 3:  # This thread goes on while that one waits.
        assert thread.is_alive()
        time.sleep(0.01)
    coordinator.put_if_absent(key, "there")
    thread.join(10)
    assert found == ["there"]
    assert set(waits) == {50}


def test_what_is_under_a_key_goes_with_it_and_nothing_else(coordinator: JaxCoordinator, key: str) -> None:
    for name in (key, f"{key}/a", f"{key}/a/b", f"{key}b"):
        coordinator.put_if_absent(name, "x")
    coordinator.delete(key)
    assert coordinator.wait_for(f"{key}b", 10) == "x"
    for name in (key, f"{key}/a", f"{key}/a/b"):
        assert coordinator.put_if_absent(name, "again"), f"{name} is still there"
    coordinator.delete(f"{key}/none")


def test_nobody_is_known_to_be_gone_and_an_error_cannot_be_reported(coordinator: JaxCoordinator) -> None:
    assert coordinator.gone() == frozenset()
    coordinator.report_error("anything")


class Failing:
    """A client whose service is gone."""

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: failed to connect to all addresses")

        return call


def test_a_service_that_is_gone_is_a_loss_in_each_call(coordinator: JaxCoordinator) -> None:
    coordinator._client = Failing()
    for call in (
        lambda: coordinator.put_if_absent("k", "v"),
        lambda: coordinator.wait_for("k", 1.0),
        lambda: coordinator.delete("k"),
    ):
        with pytest.raises(CoordinationLost, match="failed to connect"):
            call()


def test_without_a_service_the_program_is_told_what_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed._state(), "client", None)
    with pytest.raises(CoordinationLost, match=r"one of 2.*Call keras\.distribution\.initialize\(\)"):
        JaxCoordinator(0, 2)
