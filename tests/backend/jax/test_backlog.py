"""The host does not run further ahead of the device than a notice can wait for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import pytest

from keras_preempt.backend.jax import backlog


class Steps:
    """A training function whose steps end when the host waits for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[int] = []
        self.waited: list[int] = []
        monkeypatch.setattr(jax, "block_until_ready", lambda logs: self.waited.append(logs["step"]))

    def __call__(self, state: int, iterator: Any) -> tuple[dict[str, int], int]:
        self.begun.append(state)
        return {"step": state}, state + 1


def test_a_step_is_waited_for_when_enough_others_are_queued_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = Steps(monkeypatch)
    model = SimpleNamespace(train_function=steps)
    backlog.bound(model)
    state = 0
    for _ in range(10):
        logs, state = model.train_function(state, None)
        assert logs == {"step": state - 1}, "what the step returns goes to Keras"
        unfinished = len(steps.begun) - len(steps.waited)
        assert unfinished <= backlog.WINDOW
    assert steps.waited == list(range(10 - backlog.WINDOW)), "and for no later one: the device is kept busy"


def test_an_error_of_a_step_comes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(state: Any, iterator: Any) -> Any:
        raise ValueError("the user's own error")

    model = SimpleNamespace(train_function=failing)
    backlog.bound(model)
    with pytest.raises(ValueError, match="own error"):
        model.train_function(0, None)


def test_an_error_of_an_earlier_step_comes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    model = SimpleNamespace(train_function=Steps(monkeypatch))
    backlog.bound(model)

    def failed(logs: Any) -> None:
        raise jax.errors.JaxRuntimeError("UNKNOWN: Gloo all-reduce failed")

    monkeypatch.setattr(jax, "block_until_ready", failed)
    for step in range(backlog.WINDOW):
        model.train_function(step, None)
    with pytest.raises(jax.errors.JaxRuntimeError, match="Gloo"):
        model.train_function(backlog.WINDOW, None)


def test_at_the_end_the_function_is_the_models_own_again(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch)
    model = SimpleNamespace(train_function=steps)
    end = backlog.bound(model)
    assert model.train_function is not steps
    end()
    assert model.train_function is steps
    end()


def test_a_function_that_the_program_has_replaced_since_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = SimpleNamespace(train_function=Steps(monkeypatch))
    end = backlog.bound(model)
    model.train_function = replaced = Steps(monkeypatch)
    end()
    assert model.train_function is replaced
