"""What the log says of a step that runs as Python code."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import keras
import pytest
import torch

from keras_preempt import PreemptionCallback
from keras_preempt.backend.torch.backend import BACKEND
from keras_preempt.backend.torch.running_fit import TorchStep, is_compiled, sums_gradients


class Pure(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.inner(inputs)


class Counting(Pure):
    calls = 0

    def call(self, inputs: Any) -> Any:
        self.calls = self.calls + 1
        return super().call(inputs)


class Collecting(Pure):
    seen: list[int] = []  # noqa: RUF012

    def call(self, inputs: Any) -> Any:
        self.seen.append(1)
        return super().call(inputs)


def _model(*layers: Any, kind: Any = keras.Sequential, **options: Any) -> Any:
    model = kind([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    return model


@pytest.mark.parametrize(("layer", "remembers"), [(Pure, False), (Counting, True), (Collecting, True)])
def test_a_layer_that_keeps_something_in_attributes_is_a_condition(layer: Any, remembers: bool) -> None:
    assert ("keeps what it remembers" in TorchStep(_model(layer())).condition) is remembers


def test_torch_compiles_steps_and_modules() -> None:
    def wrapped(module: Any) -> Any:
        return _model(keras.layers.TorchModuleWrapper(module))

    in_place = torch.nn.Sequential(torch.nn.Linear(3, 3))
    assert not is_compiled(_model())
    assert not is_compiled(wrapped(in_place))
    in_place[0].compile()
    assert is_compiled(wrapped(in_place))
    assert is_compiled(wrapped(torch.compile(torch.nn.Linear(3, 3))))
    assert is_compiled(_model(jit_compile=True))


class OfTheUser(keras.Sequential):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


@pytest.mark.parametrize("kind", [keras.Sequential, OfTheUser])
def test_what_torch_compiles_is_a_condition(
    kind: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = torch.compile(torch.nn.Linear(3, 3), backend="eager")
    model = _model(keras.layers.TorchModuleWrapper(module), kind=kind)
    caplog.set_level(logging.INFO, "keras_preempt")
    with torch.compiler.set_stance("force_eager"):  # What is compiled holds on to the model.
        model.fit(torch.zeros(4, 3), torch.zeros(4, 1), verbose=0, callbacks=[PreemptionCallback(tmp_path)])
    (said,) = [each for each in caplog.messages if "After a preemption" in each]
    assert "exact if" in said
    assert "torch compiles the training step and the modules in it" in said


def test_a_module_of_torch_that_keeps_something_in_attributes_is_a_condition() -> None:
    class CountingModule(torch.nn.Linear):
        calls = 0

        def forward(self, inputs: Any) -> Any:
            self.calls = self.calls + 1
            return super().forward(inputs)

    def condition(module: torch.nn.Module) -> str:
        return TorchStep(_model(keras.layers.TorchModuleWrapper(module))).condition

    assert condition(torch.nn.Linear(3, 3)) == ""
    assert "keeps what it remembers" in condition(CountingModule(3, 3))


class Backward(keras.Sequential):
    def train_step(self, data: Any) -> Any:
        self.compute_loss(*data).backward()


class Cleared(keras.Sequential):
    def train_step(self, data: Any) -> Any:
        self.zero_grad()
        self.compute_loss(*data).backward()


def test_a_step_of_the_user_s_own_is_not_known_and_what_it_may_sum_is_told() -> None:
    assert not sums_gradients(keras.Model.train_step)
    assert sums_gradients(Backward.train_step)
    assert not sums_gradients(Cleared.train_step)
    assert BACKEND.trace(_model(), None) is not None
    assert BACKEND.trace(_model(kind=Cleared), None) is None
    assert BACKEND.unkept(_model(kind=Cleared)) == []
    (said,) = BACKEND.unkept(_model(kind=Backward))
    assert "gradients" in said


def test_an_optimizer_of_torch_is_told() -> None:
    model = _model(kind=Cleared)
    model.other = torch.optim.Adam([variable.value for variable in model.trainable_variables])
    (said,) = BACKEND.unkept(model)
    assert said.startswith("the state of Adam in ")
    assert said.endswith(".other")


def test_a_result_of_a_metric_may_change_later() -> None:
    assert BACKEND.variables.may_change(torch.zeros(()))
    assert not BACKEND.variables.may_change(0.5)
