"""An execution runs its steps or what data is left, and never takes a batch that it does not run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from keras_preempt.backend.tensorflow.repairs import execution_loop


@pytest.fixture(params=["eagerly", "in a graph"])
def compiled(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    if request.param == "eagerly":
        return lambda function: function
    compile_: Callable[[Any], Any] = tf.function(autograph=False)
    return compile_


def _counting_step(seen: Any) -> Callable[[Any], Any]:
    def step(batch: Any) -> Any:
        seen.assign(tf.concat([seen.read_value(), [batch]], axis=0))
        return {"last": batch, "both": (batch, 2.0 * tf.cast(batch, tf.float32))}

    return step


def _seen_by_execution(compiled: Callable[[Any], Any], batches: int, steps: int) -> list[list[int]]:
    seen = tf.Variable([], shape=[None], dtype=tf.int64)
    execution = compiled(execution_loop(_counting_step(seen), steps))
    iterator = iter(tf.data.Dataset.range(batches))
    executions = []
    while True:
        seen.assign(tf.zeros([0], tf.int64))
        outputs = execution(iterator)
        if not outputs.has_value():
            assert not seen.numpy().tolist()
            return executions
        executions.append(seen.numpy().tolist())
        value = outputs.get_value()
        assert value["last"].numpy() == executions[-1][-1]
        assert value["both"][1].numpy() == 2.0 * executions[-1][-1]


@pytest.mark.parametrize(
    ("batches", "steps", "expected"),
    [
        (10, 3, [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]),
        (6, 3, [[0, 1, 2], [3, 4, 5]]),
        (2, 5, [[0, 1]]),
        (2, 1, [[0], [1]]),
        (0, 3, []),
    ],
)
def test_an_execution_runs_its_steps_or_what_data_is_left(
    compiled: Callable[[Any], Any], batches: int, steps: int, expected: list[list[int]]
) -> None:
    assert _seen_by_execution(compiled, batches, steps) == expected


def test_an_execution_never_takes_a_batch_that_it_does_not_run(compiled: Callable[[Any], Any]) -> None:
    iterator = iter(tf.data.Dataset.range(10))
    compiled(execution_loop(lambda batch: batch, 3))(iterator)
    assert next(iterator).numpy() == 3
