"""JAX's record of a job: how a process hears of an early signal, and how it leaves."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from keras_preempt.backend.jax import distributed, place
from keras_preempt.process import environment


class Exits:
    """Stands for `atexit`."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def register(self, function: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        self.calls.append((function, args, kwargs))

    def unregister(self, function: Callable[..., None]) -> None:
        self.calls = [call for call in self.calls if call[0] is not function]

    def run(self) -> None:
        for function, args, kwargs in reversed(self.calls):
            function(*args, **kwargs)


class Client:
    """Stands for the client of a job whose processes all leave."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def wait_at_barrier(self, name: str, limit: int) -> None:
        self.asked.append((name, limit))

    def get_live_nodes(self, nodes: list[int]) -> list[int]:
        self.asked.append(nodes)
        return nodes


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> Exits:
    exits = Exits()
    monkeypatch.setattr(distributed, "atexit", exits)
    monkeypatch.setattr(distributed, "_ordered", [])
    return exits


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A job of two processes, of which this one is the first."""
    state = SimpleNamespace(
        client=Client(), service=object(), preemption_sync_manager=object(), process_id=0, num_processes=2
    )
    shut_down: list[bool] = []
    monkeypatch.setattr(distributed, "_state", lambda: state)
    monkeypatch.setattr(jax.distributed, "shutdown", lambda: shut_down.append(True))
    state.shut_down = shut_down
    return state


def recoverable(monkeypatch: pytest.MonkeyPatch, value: bool) -> None:
    monkeypatch.setattr(distributed.jax, "config", SimpleNamespace(jax_enable_recoverability=value))


def test_a_jax_that_has_no_such_option_is_not_recoverable(monkeypatch: pytest.MonkeyPatch) -> None:
    recoverable(monkeypatch, True)
    assert distributed.is_recoverable()
    monkeypatch.setattr(distributed.jax, "config", SimpleNamespace())
    assert not distributed.is_recoverable()


@pytest.mark.parametrize("is_recoverable", [False, True])
def test_a_process_that_was_preempted_leaves_when_the_others_do(
    is_recoverable: bool, exits: Exits, state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recoverable(monkeypatch, is_recoverable)
    client = state.client
    distributed.leave_together()
    exits.run()
    barrier = ("keras_preempt/leaves", round(distributed.LEAVE_TOGETHER_SECONDS * 1000))
    # Where no process waits for the others at its end, process 0, which has the service, is the last.
    assert client.asked == [barrier, [0, 1]] if is_recoverable else [barrier]
    assert state.shut_down == [True]


@pytest.mark.parametrize("is_recoverable", [False, True])
def test_a_process_that_has_finished_waits_where_jax_does_not(
    is_recoverable: bool, exits: Exits, state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recoverable(monkeypatch, is_recoverable)
    for _ in range(2):  # Once for all fits of the process.
        distributed.leave_in_order()
    exits.run()
    assert bool(state.client.asked) == is_recoverable
    assert state.shut_down == [True] * is_recoverable


def test_a_process_whose_others_do_not_come_leaves_alone(
    exits: Exits, state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recoverable(monkeypatch, False)
    state.client, state.process_id = Keys({}), 1
    distributed.leave_together()
    exits.run()
    assert (state.client, state.service, state.preemption_sync_manager) == (None, None, None)
    assert state.shut_down == []


@pytest.mark.parametrize("again", [distributed.leave_in_order, distributed.leave_service_last])
def test_a_program_that_trains_again_does_not_leave_as_after_its_save(
    again: Any, exits: Exits, state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recoverable(monkeypatch, False)
    distributed.leave_together()
    again()
    exits.run()
    assert state.client.asked == [], "JAX itself waits for the others, for minutes"


@pytest.mark.parametrize("process", [0, 1])
def test_where_a_process_that_has_saved_does_not_come_to_its_end_process_0_is_the_last(
    process: int, exits: Exits, state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has gone without a word has no end that is waited for."""
    recoverable(monkeypatch, False)
    monkeypatch.setattr(distributed, "_END_SECONDS", 600.0)
    monkeypatch.setattr(distributed, "LAST_SECONDS", distributed.LAST_OF_SAVED_SECONDS)
    state.process_id = process
    keys = state.client = Keys({})
    distributed.leave_together()
    exits.run()
    assert (len(keys.waited), len(keys.keys)) == ((0, 1) if process else (1, 0))
    assert state.client is None, "then it leaves alone"


def test_a_process_whose_others_train_on_says_that_it_goes_where_jax_can_do_without_it(
    exits: Exits, state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recoverable(monkeypatch, True)
    state.process_id = 1
    state.client = Keys({})
    distributed.leave_together()
    exits.run()
    assert state.shut_down == [True]


@pytest.mark.parametrize(("is_recoverable", "process"), [(True, 0), (True, 1), (False, 0)])
def test_of_models_of_their_own_process_0_ends_last_where_jax_does_not_see_to_that(
    is_recoverable: bool, process: int, exits: Exits, state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recoverable(monkeypatch, is_recoverable)
    state.process_id = process
    for _ in range(2):
        distributed.leave_service_last()
    exits.run()
    assert state.client.asked == ([[0, 1]] if is_recoverable and process == 0 else [])
    assert state.shut_down == [], "JAX does that itself"


@pytest.mark.parametrize(
    ("is_recoverable", "process", "alone"),
    [(True, 0, True), (True, 1, False), (False, 0, True), (False, 1, True)],
)
def test_a_process_that_is_refused_does_not_wait_for_those_that_train(
    is_recoverable: bool,
    process: int,
    alone: bool,
    exits: Exits,
    state: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recoverable(monkeypatch, is_recoverable)
    state.process_id = process
    distributed.leave_refused()
    assert bool(exits.calls) == alone


def test_what_is_left_behind_is_kept_for_ever(state: Any) -> None:
    held = state.service
    before = sys.getrefcount(held)
    distributed.leave_alone()
    # The state has let it go, and what it refers to must not be dropped: that waits for the others.
    assert sys.getrefcount(held) == before
    assert state.service is None


def test_a_process_that_trains_again_after_a_failure_leaves_with_the_others(
    exits: Exits, state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recoverable(monkeypatch, False)
    for _ in range(2):
        distributed.leave_alone_at_the_end()
    assert len(exits.calls) == 1
    distributed.leave_in_order()
    exits.run()
    assert state.client is not None, "it has not left alone"


class Keys:
    """Stands for the keys of a job whose processes do not leave together; `others` have said that they end."""

    def __init__(self, others: dict[str, str]) -> None:
        self.keys = others
        self.waited: list[str] = []

    def wait_at_barrier(self, name: str, limit: int) -> None:
        raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: Barrier timed out.")

    def key_value_set(self, key: str, value: str) -> None:
        self.keys[key] = value

    def blocking_key_value_get(self, key: str, limit: int) -> str:
        self.waited.append(key)
        assert 0 < limit <= distributed.LAST_SECONDS * 1000
        if key not in self.keys:
            raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: it was killed")
        return self.keys[key]


def test_of_a_job_that_has_failed_process_0_ends_after_the_others(
    exits: Exits, state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "_END_SECONDS", 0.0)
    state.num_processes = 3
    keys = state.client = Keys({})
    state.process_id = 2
    distributed.leave_alone_at_the_end()
    exits.run()
    assert state.client is None, "it leaves alone"
    assert len(keys.keys) == 1, "and says before that it is about to end"
    state.client, state.process_id = keys, 0
    exits.run()
    assert keys.waited[-1] in keys.keys, "process 0 waits for what process 2 has said"
    assert len(keys.waited) == 2, "and for process 1, which was killed, no longer than its limit"
    assert state.client is None


def test_a_process_of_no_job_does_nothing_when_it_leaves(exits: Exits, state: Any) -> None:
    state.client = None
    distributed.leave_together()
    assert exits.calls == []
    assert distributed.early_notice() is None


def test_a_signal_that_jax_has_heard_or_tells_of_late_is_told_with_its_time() -> None:
    assert distributed.early_notice() is None
    found = distributed.client()
    told = threading.Timer(0.2, found.key_value_set, (distributed.NOTICE_KEY, "2026-01-01T00:00:00"))
    told.start()
    try:
        assert distributed.early_notice(30.0) == "2026-01-01T00:00:00"
        assert distributed.early_notice() == "2026-01-01T00:00:00"
    finally:
        told.join()
        found.key_value_delete(distributed.NOTICE_KEY)
    assert distributed.early_notice() is None
    assert distributed.early_notice(0.1) is None


@pytest.mark.parametrize(
    ("processes", "client", "expected"),
    [("2", False, True), ("1", False, False), ("x", False, False), ("2", True, False)],
)
def test_a_process_knows_whether_it_is_one_of_several(
    processes: str, client: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.KERAS_PROCESSES, processes)
    if not client:
        monkeypatch.setattr(distributed._state(), "client", None)
    assert place.in_a_cluster() == expected  # What it has joined is what counts: here, a job of one process.


def test_all_processes_know_their_job_by_one_name() -> None:
    assert distributed.name_of_job() == distributed.name_of_job() != ""
