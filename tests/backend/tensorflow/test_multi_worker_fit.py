"""The repairs are made where they are needed, are seen to be made, and are undone without a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FunctionType
from typing import Any

import keras
import numpy as np
import pytest

from keras_preempt.backend.keras.names import KerasInternalsError, PrivateName
from keras_preempt.backend.tensorflow import multi_worker_fit as keras_repairs
from keras_preempt.backend.tensorflow.multi_worker_fit import enable_multi_worker_fit
from keras_preempt.backend.tensorflow.repairs import REPAIRS, Repair

pytestmark = pytest.mark.usefixtures("fresh_keras")

_BUILD, _AVERAGE, _BRANCHES, _LOOP, _OVERFLOW = REPAIRS


def _installed() -> list[Callable[..., Any]]:
    return [repair.target.find() for repair in REPAIRS]


@pytest.fixture(autouse=True)
def original() -> Iterator[list[Callable[..., Any]]]:
    functions = _installed()
    yield functions
    assert all(now is then for now, then in zip(_installed(), functions, strict=True))
    assert "fit" not in vars(keras.Model)


def _break_every(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the tests below independent of what is broken in the installed Keras."""
    broken = tuple(replace(repair, is_broken=lambda function: True) for repair in REPAIRS)
    monkeypatch.setattr(keras_repairs, "REPAIRS", broken)


def test_repairs_stay_until_the_last_handle_is_undone(
    monkeypatch: pytest.MonkeyPatch, original: list[Callable[..., Any]]
) -> None:
    _break_every(monkeypatch)
    first, second = enable_multi_worker_fit(), enable_multi_worker_fit()
    repaired = _installed()
    assert first.repaired == second.repaired
    first.undo()
    first.undo()  # once more changes nothing: the second handle is still live
    assert _installed() == repaired
    second.undo()
    assert _installed() == original


def test_a_context_undoes_also_when_training_fails_and_repairs_can_be_made_again(
    monkeypatch: pytest.MonkeyPatch, original: list[Callable[..., Any]]
) -> None:
    _break_every(monkeypatch)
    for _ in range(2):
        handle = enable_multi_worker_fit()
        assert handle.repaired == tuple(repair.defect for repair in REPAIRS)
        assert not any(now is then for now, then in zip(_installed(), original, strict=True))
        with pytest.raises(ZeroDivisionError), handle:
            raise ZeroDivisionError
        assert all(now is then for now, then in zip(_installed(), original, strict=True))


def test_undo_never_removes_what_somebody_else_put_on_top(monkeypatch: pytest.MonkeyPatch) -> None:
    _break_every(monkeypatch)
    owner, name = _LOOP.target.owner(), _LOOP.target.attribute
    keras_own = vars(owner)[name]
    handle = enable_multi_worker_fit()

    def theirs(self: Any, step_function: Any) -> Any:
        raise AssertionError("not called")

    setattr(owner, name, theirs)
    handle.undo()
    assert vars(owner)[name] is theirs
    setattr(owner, name, keras_own)


@pytest.mark.parametrize("repair", [_BUILD, _AVERAGE, _BRANCHES, _OVERFLOW], ids=lambda repair: repair.defect)
def test_a_repaired_function_is_seen_as_whole(repair: Repair) -> None:
    function = repair.target.find()
    assert not repair.is_broken(repair.repaired(function))


def test_a_loop_without_branches_is_seen_as_whole() -> None:
    def whole(tf: Any) -> Any:
        def one_step_on_data(data: Any) -> Any: ...

        def body(step: Any, batch: Any) -> Any:
            return one_step_on_data(batch), tf.cond(step, lambda: batch, lambda: batch)

        return body

    def broken(tf: Any) -> Any:
        def one_step_on_data(data: Any) -> Any: ...

        def body(step: Any, batch: Any) -> Any:
            return tf.cond(step, lambda: one_step_on_data(batch), lambda: batch)

        return body

    assert not _LOOP.is_broken(whole)
    assert _LOOP.is_broken(broken)


@pytest.mark.skipif(not _BRANCHES.needed(), reason="the installed Keras does not branch in each replica")
@pytest.mark.parametrize("mended", ["meets", "backend", "arithmetic"])
def test_an_optimizer_that_does_not_branch_in_each_replica_is_seen_as_whole(
    monkeypatch: pytest.MonkeyPatch, mended: str
) -> None:
    function = _BRANCHES.target.find()

    def _backend_apply_gradients(self: Any, grads: Any, trainable_variables: Any) -> None:
        raise AssertionError("not called")

    def meets(ops: Any, context: Any) -> None:
        context.merge_call(lambda strategy: ops.cond(True, lambda: None, lambda: None))

    def arithmetic(ops: Any) -> None:
        ops.where(True, 1, 0)

    if mended == "backend":  # As Keras does for JAX.
        backend = next(
            k for k in keras.optimizers.Optimizer.__mro__ if k.__module__.endswith("tensorflow.optimizer")
        )
        monkeypatch.setattr(backend, _BRANCHES.target.attribute, _backend_apply_gradients, raising=False)
    else:
        code = {"meets": meets, "arithmetic": arithmetic}[mended].__code__
        function = FunctionType(code, function.__globals__, function.__name__)
        function.__module__ = _BRANCHES.target.module
    assert not _BRANCHES.is_broken(function)


def test_an_optimizer_that_branches_in_an_unknown_way_is_an_error() -> None:
    def _backend_apply_gradients(self: Any, grads: Any, trainable_variables: Any, backend: Any) -> None:
        backend.cond(True, lambda: None, lambda: None)

    _backend_apply_gradients.__module__ = _BRANCHES.target.module
    with pytest.raises(AttributeError, match=r"does not branch by ops\.cond"):
        _BRANCHES.is_broken(_backend_apply_gradients)


def test_a_keras_that_works_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, original: list[Callable[..., Any]]
) -> None:
    whole = tuple(replace(repair, is_broken=lambda function: False) for repair in REPAIRS)
    monkeypatch.setattr(keras_repairs, "REPAIRS", whole)
    with enable_multi_worker_fit() as handle:
        assert handle.repaired == ()
        assert _installed() == original


def _fit_one_device(steps_per_execution: int = 1) -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=2, verbose=0)
    return model


def test_one_device_runs_keras_own_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    _break_every(monkeypatch)
    with enable_multi_worker_fit():
        model = _fit_one_device(steps_per_execution=3)
    assert model.train_function.__module__ == _LOOP.target.module
    assert model.optimizer.iterations.numpy() == 4


@pytest.mark.parametrize(
    "target",
    [
        PrivateName(_LOOP.target.module, "TensorFlowTrainer._gone", ("self",)),
        PrivateName(_LOOP.target.module, "GoneTrainer._make_function", ("self",)),
        PrivateName("keras.src.gone", "Trainer._make_function", ("self",)),
        PrivateName(_LOOP.target.module, _LOOP.target.path, ("self", "another_parameter")),
    ],
    ids=lambda target: str(target),
)
def test_a_changed_keras_is_an_error_only_for_a_model_that_needs_the_repair(
    monkeypatch: pytest.MonkeyPatch, target: PrivateName
) -> None:
    needed = False
    changed = replace(_LOOP, target=target, concerns=lambda model: needed)
    monkeypatch.setattr(keras_repairs, "REPAIRS", (changed,))
    with enable_multi_worker_fit() as handle:
        assert handle.repaired == ()
        _fit_one_device()
        needed = True
        with pytest.raises(
            KerasInternalsError, match=r"Expected .*Received: .*Install keras==3\.15\.1"
        ) as caught:
            _fit_one_device()
        assert keras.__version__ in str(caught.value)
        assert target.attribute in str(caught.value)
    _fit_one_device()


def test_a_function_that_works_in_another_way_is_an_error_that_names_it() -> None:
    def not_understood(function: Callable[..., Any]) -> bool:
        raise AttributeError("no such thing")

    with pytest.raises(KerasInternalsError, match=r"_make_function.*works differently \(no such thing\)"):
        replace(_LOOP, is_broken=not_understood).needed()
