"""A small fit in this process that is preempted at a chosen hook, with whatever callbacks a test gives it."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_preempt import Preempted, PreemptionCallback, TerminationConfig
from tests import fits
from tests.cluster.noticed_fit import PATIENCE, Model
from tests.cluster.small_fit import await_

X = np.random.default_rng(3).normal(size=(24, 4)).astype("float32")
Y = X[:, :1] * 2

#: A hook and which of its calls, from 0: there the notice comes.
Strike = tuple[str, int]


@functools.cache
def compiled(kind: type[keras.Sequential]) -> Model:
    """A model, of which a weight is large enough that no checkpoint holds it twice."""
    return Model(units=128, kind=kind)


class Striker(keras.callbacks.Callback):
    """Sends this process SIGTERM in a hook, and waits until the workers have a plan."""

    keeps_state = False

    def __init__(self, strike: Strike | None, directory: Path) -> None:
        super().__init__()
        self._strike, self._events = strike, directory
        self._calls: Counter[str] = Counter()

    def _called(self, hook: str) -> None:
        if (hook, self._calls[hook]) == self._strike:
            planned = self._plans()
            os.kill(os.getpid(), signal.SIGTERM)
            await_(lambda: self._plans() > planned, PATIENCE, "there was no plan")
        self._calls[hook] += 1

    def _plans(self) -> int:
        return sum(path.read_text().count('"plan"') for path in self._events.rglob("events/*.jsonl"))

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


def _hook(name: str) -> Callable[..., None]:
    def called(self: Striker, *_: Any, **__: Any) -> None:
        self._called(name)

    return called


for _name in ("epoch_begin", "epoch_end", "train_batch_begin", "test_begin", "test_batch_begin", "test_end"):
    setattr(Striker, f"on_{_name}", _hook(f"on_{_name}"))


@dataclass(frozen=True)
class Ended:
    """What a fit has ended with; `what` is what the test has taken out of its callbacks."""

    weights: Sequence[np.ndarray[Any, Any]]
    optimizer: Sequence[np.ndarray[Any, Any]]
    history: dict[str, list[float]]
    what: Any

    def assert_same(self, other: Ended) -> None:
        """Every bit."""
        for one, two in zip(
            [*self.weights, *self.optimizer], [*other.weights, *other.optimizer], strict=True
        ):
            np.testing.assert_array_equal(one, two)
        assert self.history == other.history
        np.testing.assert_equal(other.what, self.what)


def start(
    directory: Path,
    callbacks: Callable[[], Sequence[keras.callbacks.Callback]],
    strike: Strike | None = None,
    what: Callable[..., Any] = lambda *_: None,
    *,
    new_process: bool = True,
    plain: bool = False,
    kind: type[keras.Sequential] = keras.Sequential,
    **arguments: Any,
) -> Ended | None:
    """A start of the script; None if it was preempted.

    Args:
        directory: Of the run.
        callbacks: Makes those of the script.
        strike: Where the notice comes.
        what: Given the callbacks after training, returns what they are to have ended with.
        new_process: Whether it begins as a new process does.
        plain: Whether to leave out the PreemptionCallback.
        kind: The class of the model.
        arguments: Of `fit`.
    """
    model = compiled(kind)
    if new_process:
        fits.forget()
        model.begin_anew()
        keras.utils.set_random_seed(7)
    made = list(callbacks())
    config = TerminationConfig(exit_fn=lambda: None)
    ours = [] if plain else [PreemptionCallback(directory, termination=config), Striker(strike, directory)]
    options = {
        "x": X,
        "y": Y,
        "batch_size": 4,
        "epochs": 3,
        "verbose": 0,
        "validation_data": (X[:16], Y[:16]),
    }
    try:
        history = model.keras.fit(callbacks=[*ours, *made], **{**options, **arguments}).history
    except Preempted:
        return None
    return Ended(
        model.keras.get_weights(),
        [np.array(variable) for variable in model.keras.optimizer.variables],
        history,
        what(*made),
    )


def assert_exact(
    folder: Path,
    callbacks: Callable[[], Sequence[keras.callbacks.Callback]],
    *strikes: Strike,
    what: Callable[..., Any] = lambda *_: None,
    **arguments: Any,
) -> None:
    """Plain Keras and a run that is preempted at each of the strikes end with the same bits."""
    plain = start(folder / "plain", callbacks, what=what, plain=True, **arguments)
    assert plain is not None
    for strike in strikes:
        assert start(folder / "run", callbacks, strike, what, **arguments) is None, f"{strike} did not come"
        time.sleep(0)  # Lets threads of the fit that was left end.
    ended = start(folder / "run", callbacks, None, what, **arguments)
    assert ended is not None
    plain.assert_same(ended)
