"""Other callbacks are called as plain Keras calls them: the same hooks in the same order, with the same logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_preempt import PreemptionCallback
from tests import fits

X = np.arange(48, dtype="float32").reshape(12, 4) / 48
Y = X.sum(axis=1, keepdims=True)

HOOKS = sorted(name for name in dir(keras.callbacks.Callback) if name.startswith(("on_", "set_")))
"""Every hook that Keras has, those of evaluate and predict as well."""


class Recorder(keras.callbacks.Callback):
    """Notes each call, with what it was given and what the model and the optimizer were like."""

    def __init__(self, name: str, calls: list[Any]) -> None:
        super().__init__()
        for hook in HOOKS:
            setattr(self, hook, self._noting(name, hook, getattr(self, hook), calls))

    def _noting(self, name: str, hook: str, original: Any, calls: list[Any]) -> Any:
        def note(*arguments: Any, **options: Any) -> None:
            original(*arguments, **options)
            given = "" if hook == "set_model" else repr((arguments, options))
            state = None if self.model is None else [w.tobytes() for w in self.model.get_weights()]
            calls.append((name, hook, given, state, None if self.model is None else self.model.stop_training))

        return note

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """There is none."""


class Evaluates(Recorder):
    """Calls evaluate and predict in the middle of a fit, with callbacks of their own."""

    def __init__(self, name: str, calls: list[Any]) -> None:
        super().__init__(name, calls)
        self._calls = calls

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.evaluate(X, Y, verbose=0, callbacks=[Recorder("evaluate", self._calls)])
        self.model.predict(X, verbose=0, callbacks=[Recorder("predict", self._calls)])


class Stops(Recorder):
    """Ends training in the middle of the second epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.model.optimizer.iterations == 5:
            self.model.stop_training = True


def calls_of(directory: Path, place: int | None, kinds: list[type[Recorder]], **options: Any) -> list[Any]:
    """Returns the calls of one fit, with our callback at a place among the others, or without it."""
    fits.forget()
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dropout(0.5)])
    model.add(keras.layers.Dense(1))
    model.compile("adam", "mse", metrics=["mae"], steps_per_execution=options.pop("steps_per_execution", 1))
    calls: list[Any] = []
    callbacks: list[keras.callbacks.Callback] = [
        kind(f"{kind.__name__} {number}", calls) for number, kind in enumerate(kinds)
    ]
    if place is not None:
        callbacks.insert(place, PreemptionCallback(directory))
    history = model.fit(X, Y, batch_size=4, epochs=3, verbose=0, callbacks=callbacks, **options)
    return [*calls, history.history, history.epoch, model.optimizer.iterations.numpy()]


@pytest.mark.parametrize("place", [1, *(pytest.param(place, marks=pytest.mark.chaos) for place in (0, 2))])
@pytest.mark.parametrize(
    ("kinds", "options"),
    [
        ([Recorder, Recorder], {}),
        ([Evaluates, Recorder], {"validation_data": (X, Y), "validation_freq": 2}),
        ([Stops, Recorder], {"validation_split": 0.25}),
        ([Recorder, Evaluates], {"steps_per_execution": 2, "validation_split": 0.25}),
    ],
    ids=["two", "evaluating", "stopping", "executions"],
)
def test_every_hook_is_called_as_without_ours(
    place: int, kinds: list[type[Recorder]], options: dict[str, Any], tmp_path: Path
) -> None:
    plain = calls_of(tmp_path, None, kinds, **options)
    assert len(plain) > 30
    assert calls_of(tmp_path, place, kinds, **options) == plain
