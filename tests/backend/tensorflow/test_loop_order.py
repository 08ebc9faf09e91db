"""`save_checkpoint_if_preempted` before each step and after it: the count is that of the steps in the checkpoint."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from keras_preempt import Preempted, PreemptionCheckpointHandler, TerminationConfig
from tests.test_handler import _nothing_is_left, leaves, sigterm

__all__ = ["_nothing_is_left"]


def loop_of(order: str, handler: Any, step: Callable[[], object], steps: int) -> None:
    for _ in range(handler.total_run_calls, steps):
        if order == "before":
            handler.save_checkpoint_if_preempted()
        step()
        if order == "after":
            handler.save_checkpoint_if_preempted()


def trained(state: Any) -> Callable[[], object]:
    """What a step of the loop does to the state."""
    if isinstance(state, tf.Variable):
        return lambda: state.assign(state + 1)
    x = tf.ones((4, 3))

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(state.model(x))
        state.optimizer.apply_gradients(
            zip(
                tape.gradient(loss, state.model.trainable_variables),
                state.model.trainable_variables,
                strict=True,
            )
        )

    return step


def keras_model(*, built: bool) -> tf.train.Checkpoint:
    """Whose first layer no step changes."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(5, trainable=False), keras.layers.Dense(2)])
    optimizer = keras.optimizers.SGD(0.1)
    if built:
        model.build((None, 3))
        optimizer.build(model.trainable_variables)
    return tf.train.Checkpoint(model=model, optimizer=optimizer)


STATES: dict[str, Callable[[], Any]] = {
    "a variable": lambda: tf.train.Checkpoint(state=tf.Variable(tf.zeros((100, 1000)))),
    "a model": lambda: keras_model(built=True),
    "a model that the first step builds": lambda: keras_model(built=False),
}


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize(
    ("kind", "at"),
    [
        *[("a variable", 0), ("a variable", 3), ("a model", 1), ("a model that the first step builds", 1)],
        *(
            pytest.param(kind, at, marks=pytest.mark.chaos)
            for kind, at in [("a variable", 1), *itertools.product(list(STATES)[1:], [0, 3])]
        ),
    ],
)
def test_the_count_is_the_number_of_steps_in_the_checkpoint_in_either_order(
    tmp_path: Path, kind: str, order: str, at: int
) -> None:
    done: list[int] = []
    saved: list[int] = []

    def begin() -> tuple[Any, Callable[[], object]]:
        held = STATES[kind]()
        config = TerminationConfig(exit_fn=lambda: saved.append(len(done)))
        step = trained(held.state if kind == "a variable" else held)

        def counted_step() -> None:
            step()
            done.append(len(done))
            if len(done) == at:
                sigterm()

        return PreemptionCheckpointHandler(None, held, tmp_path, config), counted_step

    handler, step = begin()
    if at == 0:
        sigterm()
    with pytest.raises(Preempted):
        loop_of(order, handler, step, 6)
    at = -1
    handler, step = begin()
    assert [handler.total_run_calls] == saved == [len(done)]
    with handler:
        loop_of(order, handler, step, 6)
    assert handler.total_run_calls == len(done) == 6


def test_with_nothing_to_tell_by_calls_are_taken_to_come_after_the_steps(tmp_path: Path) -> None:
    handler = PreemptionCheckpointHandler(None, tf.train.Checkpoint(), tmp_path, leaves())
    loop_of("after", handler, int, 3)
    sigterm()
    with pytest.raises(Preempted):
        handler.save_checkpoint_if_preempted()
    assert PreemptionCheckpointHandler(None, tf.train.Checkpoint(), tmp_path).total_run_calls == 4
