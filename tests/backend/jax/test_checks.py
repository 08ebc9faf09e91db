"""What would stop a fit on JAX in the middle, or make it another one, is told before its first step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import keras
import numpy as np
import pytest

from keras_preempt.backend.jax import place, running_fit
from keras_preempt.backend.jax.backend import BACKEND
from tests.backend.jax.conftest import model_parallel


def feed(last: int | None) -> Any:
    return SimpleNamespace(last_batch=last)


def model() -> keras.Model:
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, name="wide"), keras.layers.Dense(1)])
    made.compile("adam", "mse")
    return made


@pytest.mark.parametrize(
    ("distributed", "last"), [(True, None), (True, 4), (True, 8), (False, None), (False, 5)]
)
def test_a_last_batch_that_all_devices_can_divide_is_fine(distributed: bool, last: int | None) -> None:
    if distributed:
        keras.distribution.set_distribution(keras.distribution.DataParallel())
    running_fit.check_fit(model(), feed(last))


def test_a_last_batch_that_the_devices_cannot_divide_is_refused_with_what_to_do() -> None:
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    with pytest.raises(
        ValueError, match=r"last batch that 4 devices can divide\. Received: one of 6, .*multiple of 4"
    ):
        running_fit.check_fit(model(), feed(6))
    # Keras really fails at such a batch.
    with pytest.raises(
        Exception, match=r"evenly divide|should be divisible by 4"
    ):  # JAX from 0.7 on; before.
        model().fit(np.ones((14, 4)), np.ones((14, 1)), batch_size=8, verbose=0)


def test_of_a_mesh_only_the_batch_dimension_counts() -> None:
    model_parallel()
    running_fit.check_fit(model(), feed(6))
    with pytest.raises(ValueError, match="2 devices"):
        running_fit.check_fit(model(), feed(5))


def test_the_rows_count_that_this_process_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a mesh whose rows go across two processes, or that has devices of this one alone, both."""
    model_parallel()
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="2 devices"):
        running_fit.check_fit(model(), feed(5))


def test_a_key_that_matches_nothing_is_told_with_what_to_write(caplog: pytest.LogCaptureFixture) -> None:
    model_parallel("no_layer/kernel", ".*no_layer/bias")
    running_fit.check_fit(model(), feed(None))
    assert len(caplog.messages) == 2
    assert all("matches no variable of the model" in text for text in caplog.messages)
    told = ["write '.*no_layer/kernel'" in caplog.text, "write '.*no_layer/bias'" in caplog.text]
    assert told == [running_fit._WHOLE_PATHS] * 2


@pytest.mark.parametrize(
    ("key", "divides"),
    [(".*wide/kernel", True), ("ide/kernel", not running_fit._WHOLE_PATHS), (".*no_layer", False)],
)
def test_a_key_is_told_where_keras_divides_nothing_by_it(key: str, divides: bool) -> None:
    distribution = model_parallel(key)
    made = model()
    kernel = next(variable for variable in made.variables if variable.path.endswith("wide/kernel"))
    assert kernel.value.is_fully_replicated == (not divides)
    assert running_fit.unmatched(made, distribution) == ([] if divides else [key])


def test_a_key_may_match_a_variable_of_the_optimizer() -> None:
    distribution = model_parallel(".*adam.*momentum")
    made = model()
    made.optimizer.build(made.trainable_variables)
    assert running_fit.unmatched(made, distribution) == []
    assert running_fit.unmatched(model(), distribution) == [".*adam.*momentum"]


# -- Place --------------------------------------------------------------------------------------------------


def test_a_distribution_in_one_process_has_a_layout_and_as_many_replicas_as_divide_a_batch() -> None:
    data_parallel = keras.distribution.DataParallel()
    assert (BACKEND.layout(None), BACKEND.replicas(None)) == ("", 1)
    assert (BACKEND.layout(data_parallel), BACKEND.replicas(data_parallel)) == ("", 4)
    assert place.place(data_parallel).members == 1
    assert not BACKEND.remote_workers()
    model_parallel()
    found = BACKEND.strategy_of(None)
    assert (BACKEND.layout(found), BACKEND.replicas(found)) == ("ModelParallel over batch=2 x model=2", 2)


def _devices(*processes: int) -> Any:
    devices = np.array([SimpleNamespace(process_index=process) for process in processes], dtype=object)
    return SimpleNamespace(device_mesh=SimpleNamespace(backend_mesh=SimpleNamespace(devices=devices)))


def test_the_processes_of_a_job_are_those_of_its_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place.jax, "process_count", lambda: 3)
    monkeypatch.setattr(place.jax, "process_index", lambda: 1)
    found = place.place(_devices(0, 0, 1, 1, 2, 2))
    assert (found.member, found.members, found.task, found.joins) == (1, 3, "process 1", True)
    assert place.place(_devices(1, 1)).members == 1
    assert place.place(None).members == 1
    with pytest.raises(
        ValueError, match=r"all 3 processes of the job\. Received: one over those of.*\[0, 1\]"
    ):
        place.place(_devices(0, 1))


def test_a_custom_loop_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Received: Keras on JAX\. Train with model\.fit"):
        BACKEND.place_of_loop(None)
