"""Random numbers of Python that a compiled step keeps are named, before training promises anything."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_preempt import PreemptionCallback
from keras_preempt.backend.jax.backend import BACKEND
from keras_preempt.backend.jax.running_fit import JaxStep


class Plain(keras.Model):
    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.inner = keras.Sequential([*layers, keras.layers.Dense(1)])

    def call(self, x: Any) -> Any:
        return self.inner(x)


class OwnStep(Plain):
    def train_step(self, state: Any, data: Any) -> Any:
        scale = np.random.rand()
        logs, state = super().train_step(state, data)
        return {**logs, "scale": scale}, state


class OwnLoss(Plain):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(*args, **kwargs) * noise()


class OwnTest(Plain):
    def test_step(self, state: Any, data: Any) -> Any:
        noise()
        return super().test_step(state, data)


def noise() -> float:
    return 1 + random.random()


class Noisy(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return x * noise()


class Importing(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        import random as drawn

        return x * drawn.random()


class Seeded(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(1)

    def call(self, x: Any) -> Any:
        return x + keras.random.uniform(keras.ops.shape(x), seed=self.seed)


def named(model: keras.Model, **compiled: Any) -> list[str]:
    model.compile("sgd", "mse", **compiled)
    return [code.where for code in JaxStep(model).random_operations()]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (lambda: Plain(), []),
        (lambda: Plain(Seeded(), keras.layers.Dropout(0.5)), []),
        (lambda: OwnStep(), ["train_step"]),
        (lambda: OwnLoss(), ["compute_loss"]),
        (lambda: OwnTest(), ["test_step"]),
        (lambda: Plain(Noisy(), Noisy()), ["Noisy.call"]),
        (lambda: Plain(Importing()), ["Importing.call"]),
    ],
    ids=["plain", "seeds of Keras", "train_step", "compute_loss", "test_step", "layer", "import"],
)
def test_functions_that_draw_outside_of_keras_are_named(model: Any, expected: list[str]) -> None:
    assert named(model()) == expected


@pytest.mark.parametrize("compiled", [{"run_eagerly": True}, {"jit_compile": False}])
def test_a_step_that_is_not_compiled_draws_in_each_from_what_is_saved(compiled: Any) -> None:
    assert named(OwnStep(), **compiled) == []


def test_a_compiled_step_keeps_what_it_has_drawn() -> None:
    """What makes these functions worth a word."""
    model = OwnStep()
    model.compile("sgd", "mse", jit_compile=True)
    drawn: list[float] = []
    keep = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: drawn.append(float(logs["scale"]))
    )
    model.fit(np.ones((6, 2)), np.ones((6, 1)), batch_size=2, verbose=0, callbacks=[keep])
    assert len(set(drawn)) == 1


@pytest.mark.parametrize(("model", "told"), [(OwnStep, True), (Plain, False)])
def test_the_promise_of_a_fit_names_them(
    model: Any, told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "keras_preempt")
    made = model()
    made.compile("sgd", "mse", jit_compile=True)
    made.fit(
        np.ones((6, 2)), np.ones((6, 1)), verbose=0, callbacks=[PreemptionCallback(str(tmp_path / "run"))]
    )
    assert ("train_step" in caplog.text) == told
    assert ("bit-identical;" in caplog.text) == (not told)


def test_a_step_has_nothing_that_is_traced_before() -> None:
    traced = BACKEND.trace(Plain(), None)
    assert list(traced.changed_variables) == []
    assert BACKEND.traced_validation(None, None) is None
    assert not BACKEND.validation_may_draw(None)
    end = BACKEND.watch_first_use([], lambda variable: pytest.fail("no variable comes into being"))
    keras.Variable(1.0)
    end()


WEIGHT: Any = None
"""A variable of the script; its test makes it."""


class Weighted(Plain):
    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = weight

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(*args, **kwargs) * self.weight


class WeightedByScript(Plain):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(*args, **kwargs) * WEIGHT


class Stateless(keras.callbacks.Callback):
    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = weight

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: Any) -> None:
        """There is none."""


class Anneals(Stateless):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.weight.assign(self.weight * 0.5)


class AnnealsByScript(Stateless):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        WEIGHT.assign(0.5)


@pytest.mark.parametrize(
    ("model", "kind", "told"),
    [
        (WeightedByScript, Anneals, "weight (in Anneals)"),
        (WeightedByScript, AnnealsByScript, "WEIGHT (in AnnealsByScript)"),
        (Weighted, Anneals, ""),
    ],
)
def test_a_variable_that_callbacks_assign_and_the_model_does_not_hold_is_told(
    model: Any,
    kind: type[Stateless],
    told: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "WEIGHT", keras.Variable(1.0, trainable=False))
    caplog.set_level("INFO", "keras_preempt")
    fitted = model(WEIGHT) if model is Weighted else model()
    fitted.compile("sgd", "mse")
    x = np.ones((8, 4), "float32")
    fitted.fit(x, x[:, :1], verbose=0, callbacks=[kind(WEIGHT), PreemptionCallback(tmp_path)])
    (line,) = (each for each in caplog.messages if "After a preemption" in each)
    expected = f"what callbacks set of other objects, if the training step reads it: {told}."
    assert (expected if told else "bit-identical") in line
