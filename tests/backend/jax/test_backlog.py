"""The host does not run further ahead of the device than a notice can wait for."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from keras_preempt.backend.jax import backlog


class Steps:
    """A training function whose steps end when the host waits for them; with logs of each kind."""

    def __init__(self, logs: Callable[[Any], Any] = lambda array: {"loss": array}) -> None:
        self.begun: list[int] = []
        self.waited: list[int] = []
        self._logs = logs

    def __call__(self, state: int, iterator: Any) -> tuple[Any, int]:
        self.begun.append(state)
        # It stands for an array of JAX, which `jax.block_until_ready` asks as well.
        array = SimpleNamespace(block_until_ready=lambda: self.waited.append(state))
        return self._logs(array), state + 1


@pytest.mark.parametrize(
    "logs",
    [
        lambda array: {"loss": array},
        lambda array: {"all": {"loss": array}},
        lambda array: {"rate": 0.5, "loss": array},
    ],
    ids=["arrays", "nested", "numbers and arrays"],
)
def test_a_step_is_waited_for_when_enough_others_are_queued_behind_it(logs: Any) -> None:
    model = SimpleNamespace(train_function=(steps := Steps(logs)))
    backlog.bound(model)
    state = 0
    for _ in range(10):
        logged, state = model.train_function(state, None)
        assert logged.keys() == logs(None).keys(), "what the step returns goes to Keras"
        assert len(steps.begun) - len(steps.waited) <= backlog.WINDOW
    assert steps.waited == list(range(10 - backlog.WINDOW)), "and for no later one: the device is kept busy"


def test_an_error_of_a_step_and_of_an_earlier_one_comes_through() -> None:
    def failed(*_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("UNKNOWN: Gloo all-reduce failed")

    model = SimpleNamespace(train_function=failed)
    backlog.bound(model)
    with pytest.raises(jax.errors.JaxRuntimeError, match="Gloo"):
        model.train_function(0, None)
    lost = {"loss": SimpleNamespace(block_until_ready=failed)}
    model = SimpleNamespace(train_function=Steps(lambda array: lost))
    backlog.bound(model)
    for step in range(backlog.WINDOW):
        model.train_function(step, None)
    with pytest.raises(jax.errors.JaxRuntimeError, match="Gloo"):
        model.train_function(backlog.WINDOW, None)


def test_at_the_end_the_function_is_the_models_own_again() -> None:
    steps = Steps()
    model = SimpleNamespace(train_function=steps)
    end = backlog.bound(model)
    assert model.train_function is not steps
    end()
    assert model.train_function is steps
    end()


def test_a_function_that_the_program_has_replaced_since_is_left_alone() -> None:
    model = SimpleNamespace(train_function=Steps())
    end = backlog.bound(model)
    model.train_function = replaced = Steps()
    end()
    assert model.train_function is replaced
