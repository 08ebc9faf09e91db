"""Every private name of JAX, and of Keras on JAX, still exists and still means what is relied upon.

A failure here says what a new release has changed, before any training does. What needs several processes is in
tests/cluster/test_jax.py; what Keras makes of arrays is in test_array_batches.py beside this file.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras.src.backend.jax.trainer import JAXEpochIterator, JAXTrainer

from keras_preempt.backend import requirements, versions
from keras_preempt.backend.jax import compiled_programs, distributed, variables
from keras_preempt.backend.jax.backend import BACKEND
from keras_preempt.backend.jax.feed import JaxFeed
from keras_preempt.backend.jax.running_fit import JaxFit
from keras_preempt.backend.keras import names
from keras_preempt.backend.keras import running_fit as keras_fit
from keras_preempt.backend.versions import UnsupportedJax
from keras_preempt.checkpoint import identity
from tests.backend.jax.conftest import model_parallel

X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")


def _changed(what: str) -> str:
    return (
        f"{what} (Keras {keras.__version__} and JAX {jax.__version__} installed, {versions.NEWEST_KERAS} and "
        f"{versions.NEWEST_JAX} verified)"
    )


# -- JAX ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", distributed._HELD)
def test_the_distributed_state_of_a_job_has_this_and_a_jax_without_it_is_refused_by_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = importlib.import_module("jax._src.distributed").global_state
    assert getattr(state, name) is not None, _changed(f"global_state.{name} is not set in a job")
    rest = SimpleNamespace(**{held: None for held in distributed._HELD if held != name})
    module = SimpleNamespace(global_state=rest)
    monkeypatch.setattr(distributed, "importlib", SimpleNamespace(import_module=lambda _: module))
    with pytest.raises(UnsupportedJax, match=f"the attribute {name} of its distributed state"):
        distributed.client()


def test_programs_are_written_by_a_function_of_this_form() -> None:
    compiler = importlib.import_module("jax._src.compiler")
    cache = importlib.import_module("jax._src.compilation_cache")
    write, put = getattr(compiler, compiled_programs._WRITE), getattr(cache, compiled_programs._PUT)
    assert compiled_programs._takes_what_is_known(write), _changed("_cache_write takes something else")
    assert [*inspect.signature(put).parameters] == [
        "cache_key",
        "module_name",
        "executable",
        "backend",
        "compile_time",
    ], _changed("put_executable_and_time takes something else")


def test_the_distributed_state_knows_its_place() -> None:
    assert (distributed._state().process_id, distributed._state().num_processes) == (0, 1)


@pytest.mark.parametrize("name", distributed._METHODS)
def test_the_client_of_the_coordination_service_has_this_and_a_jax_without_it_is_refused_by_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(getattr(distributed.client(), name)), _changed(f"{name} of the client is gone")
    rest = SimpleNamespace(**{method: print for method in distributed._METHODS if method != name})
    monkeypatch.setattr(distributed._state(), "client", rest)
    with pytest.raises(UnsupportedJax, match=f"the method {name} of its coordination client"):
        distributed.client()


def test_the_client_of_the_coordination_service_answers_as_it_did() -> None:
    client = distributed.client()
    client.key_value_set("canary/key", "value")
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"\AALREADY_EXISTS: "):
        client.key_value_set("canary/key", "another")
    assert client.key_value_try_get("canary/key") == "value"
    assert client.blocking_key_value_get("canary/key", 1000) == "value"
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"\ADEADLINE_EXCEEDED: "):
        client.blocking_key_value_get("canary/none", 1)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"\ANOT_FOUND: "):
        client.key_value_try_get("canary/none")
    client.key_value_delete("canary")
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"\ANOT_FOUND: "):
        client.key_value_try_get("canary/key")
    client.wait_at_barrier("canary", 1000)
    client.get_live_nodes([0])


def test_the_options_that_are_read_are_there() -> None:
    # JAX 0.7 brought the first, and 0.8 the second, before which there was no choice.
    assert getattr(jax.config, "jax_enable_recoverability", False) is False, _changed(
        "processes leave otherwise by default"
    )
    assert distributed.is_recoverable() is False
    assert getattr(jax.config, "jax_enable_preemption_service", True) is True, _changed(
        "JAX hears no SIGTERM by default"
    )


def test_a_jax_without_the_module_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(distributed, "importlib", SimpleNamespace(import_module=moved))
    with pytest.raises(
        UnsupportedJax, match=r"to have the module jax\._src\.distributed .*install one of these"
    ):
        distributed.client()


# -- Keras on JAX ------------------------------------------------------------------------------------------


def test_the_installed_keras_has_every_name() -> None:
    assert requirements.changed_names() == []


def model() -> keras.Model:
    made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    made.compile("adam", "mse")
    return made


def fit(hook: str, look: Any, **arguments: Any) -> tuple[keras.callbacks.History, list[Any]]:
    """Calls a function in a hook of a fit; returns the history and what the function has returned.

    The function is given the model itself: a callback's own access to it puts the state back.
    """
    made, found = model(), list[Any]()
    looking = keras.callbacks.LambdaCallback(**{hook: lambda *_, **__: found.append(look(made))})
    history = made.fit(X, Y, batch_size=2, verbose=0, callbacks=[looking], **arguments)
    assert found, _changed(f"fit does not call {hook}")
    return history, found


def test_between_the_steps_of_an_epoch_variables_hold_nothing_until_they_are_synced() -> None:
    def look(fitted: Any) -> list[bool]:
        kernel = fitted.layers[0].kernel
        before = kernel._value is None
        fitted.jax_state_sync()
        return [before, kernel._value is None]

    _, (first, *others) = fit("on_train_batch_begin", look)
    assert others == [[True, False]] * 3, _changed("the state of a step is kept otherwise")
    assert first[1] is False


def test_a_variable_that_holds_nothing_knows_how_it_is_divided() -> None:
    devices = keras.distribution.list_devices()
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    variable = model().layers[0].kernel
    variable._value = None
    found = variables._sharding_of(variable)
    assert found.devices_indices_map((3, 1)).keys() == set(jax.devices()), _changed("Variable._layout")


def test_the_running_fit_is_found_from_its_first_callback() -> None:
    _, (found,) = fit("on_train_begin", BACKEND.running_fit, epochs=3, initial_epoch=1)
    assert isinstance(found, JaxFit)
    assert isinstance(found.feed, JaxFeed)
    assert (found.epochs, found.initial_epoch) == (3, 1)


@pytest.mark.parametrize("name", keras_fit._FIT_LOCALS)
def test_fit_holds_this_in_a_local_variable(name: str) -> None:
    variables = inspect.unwrap(JAXTrainer.fit).__code__.co_varnames
    assert name in variables, _changed(f"fit has no local variable {name!r} any more")


def test_fit_calls_the_train_function_of_the_model_with_its_state_and_an_iterator() -> None:
    calls: list[Any] = []

    def replace(fitted: Any) -> None:
        original = fitted.train_function

        def train_function(state: Any, iterator: Any) -> Any:
            logs, after = original(state, iterator)
            calls.append((len(state), len(after), sorted(logs)))
            return logs, after

        fitted.train_function = train_function

    fit("on_epoch_begin", replace)
    assert len(calls) == 4, _changed("fit no longer calls self.train_function for each step")
    assert all(before == after and "loss" in logs for before, after, logs in calls), _changed(str(calls[0]))


def test_fit_looks_up_the_hooks_of_its_callbacks_on_the_container() -> None:
    called: list[int] = []

    def mute(fitted: Any) -> None:
        container = BACKEND.running_fit(fitted)._frame_callbacks
        assert isinstance(container, keras.callbacks.CallbackList)
        container.on_train_batch_begin = lambda batch, logs=None: called.append(batch)

    fit("on_epoch_begin", mute)
    assert called == [0, 1, 2, 3]


@pytest.mark.parametrize("name", JaxFeed.NEEDS)
def test_epoch_iterators_have(name: str) -> None:
    assert hasattr(JAXEpochIterator(x=X, y=Y), name), _changed(f"JAXEpochIterator.{name} is gone")


@pytest.mark.parametrize("steps", [None, 3])
def test_an_epoch_iterator_makes_its_iterators_lazily_and_counts_what_it_hands_out(steps: int | None) -> None:
    source = JAXEpochIterator(x=X, y=Y, batch_size=2, steps_per_epoch=steps)
    made: list[int] = []
    original = source._get_iterator

    def counted() -> Iterator[Any]:
        made.append(int(source._steps_seen))
        return iter(original())

    source._get_iterator = counted
    source.reset()
    counts = []
    for *_, iterator in source:
        counts.append(int(source._steps_seen))
        next(iter(iterator))
    assert counts == list(range(1, len(counts) + 1)), _changed("JAXEpochIterator._steps_seen")
    assert len(counts) == (steps or 4)
    assert made, _changed("JAXEpochIterator._get_iterator is not looked up on the instance")


def test_an_epoch_iterator_looks_up_its_steps_on_the_instance() -> None:
    source = JAXEpochIterator(x=X, y=Y, batch_size=2)
    source._enumerate_iterator = lambda: iter([(7, 7, "mine")])
    assert list(source) == [(7, 7, "mine")], _changed(
        "JAXEpochIterator no longer calls self._enumerate_iterator()"
    )


def test_the_layout_map_of_a_distribution_is_where_it_was() -> None:
    distribution = model_parallel(".*kernel")
    assert list(distribution._layout_map) == [".*kernel"], _changed("ModelParallel._layout_map")
    assert len(distribution.device_mesh.backend_mesh.devices.flat) == 4


def test_the_validation_of_a_fit_has_its_own_epoch_iterator() -> None:
    _, (found,) = fit("on_test_begin", keras_fit.evaluation_iterator, validation_data=(X, Y))
    assert isinstance(found, JAXEpochIterator), _changed("Trainer._eval_epoch_iterator is gone")


def test_the_logs_of_an_epoch_come_from_the_model() -> None:
    def replace(fitted: Any) -> None:
        vars(fitted)["_get_metrics_result_or_logs"] = lambda logs: {"mine": 12.5}

    history, _ = fit("on_epoch_begin", replace)
    assert history.history == {"mine": [12.5]}, _changed("fit no longer calls _get_metrics_result_or_logs")


def test_a_fit_without_steps_still_fails_without_a_stub() -> None:
    """What `JaxFeed` works around. Where this passes, the stub can go."""

    def skip(fitted: Any) -> None:
        BACKEND.running_fit(fitted).feed.epoch_iterator._enumerate_iterator = lambda: iter(())

    with pytest.raises(UnboundLocalError, match="logs"):
        fit("on_train_begin", skip)


def test_a_grain_adapter_knows_what_its_samples_look_like() -> None:
    grain = pytest.importorskip("grain")
    data = grain.MapDataset.source(list(zip(X, Y, strict=True))).batch(2)
    adapter = JAXEpochIterator(x=data).data_adapter
    assert type(adapter).__name__ == "GrainDatasetAdapter"
    leaves = keras.tree.flatten(adapter._output_signature)
    assert [tuple(leaf.shape[1:]) for leaf in leaves] == [(3,), (1,)], _changed("_output_signature")


def test_a_tf_dataset_stays_where_its_adapter_keeps_it() -> None:
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2)
    adapter = JAXEpochIterator(x=data).data_adapter
    assert adapter._dataset is data, _changed("TFDatasetAdapter._dataset")
    drawn = [data.take(1)]
    adapter._dataset = drawn[0]
    assert len(list(adapter.get_jax_iterator())) == 1, _changed("the adapter no longer draws from _dataset")


def test_every_name_in_the_tables_has_a_class() -> None:
    for path in (*names.ATTRIBUTES, *names.OF_TRAINERS["jax"]):
        assert names._find(path) is not None, _changed(f"{path} is gone")


def test_an_optimizer_counts_its_steps_in_the_type_that_tells_the_backend() -> None:
    dtype = keras.optimizers.SGD().iterations.dtype
    assert identity._BACKENDS[dtype] == "jax", _changed("the type of an optimizer's iterations")
