"""A small fit in this process, with whatever is to happen in its steps; how it ended, and with which bits.

Also for scripts of several workers: it is then the part of one of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_preempt import Preempted, PreemptionCallback, TerminationConfig
from tests import fits
from tests.cluster.small_fit import InEpochs, await_

STEPS, BATCH = 6, 4
PATIENCE = 60.0
"""Seconds that something is waited for which comes at once on an idle machine."""


def sigterm() -> None:
    """To this process."""
    os.kill(os.getpid(), signal.SIGTERM)


Actions = Mapping[tuple[int, int], Callable[[], object]]
"""What to do in a step, by (epoch, batch): when its boundary is passed, before it computes."""


class Program(InEpochs):
    """Does what is asked for in a step, at its tracing and at a save; notes the steps that were run.

    Args:
        actions: What to do in steps.
        on_save: Done whenever the state is captured for a save.
        on_begin: Done at the beginning of training, when notices are heard already.
        step_seconds: How much longer each step takes.
    """

    def __init__(
        self,
        actions: Actions,
        on_save: Callable[[], object] = lambda: None,
        on_begin: Callable[[], object] = lambda: None,
        step_seconds: float = 0.0,
    ) -> None:
        super().__init__()
        self.actions = dict(actions)
        self.on_save = on_save
        self.on_begin = on_begin
        self.step_seconds = step_seconds
        self.run: list[tuple[int, int, float]] = []
        self.ended_at: list[float] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.on_begin()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.step_seconds:
            time.sleep(self.step_seconds)
        self.actions.get((self.epoch, batch), lambda: None)()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.run.append((self.epoch, batch, float(logs["loss"])))
        self.ended_at.append(time.time())

    def get_state(self) -> dict[str, Any]:
        self.on_save()
        return {}


@dataclass(frozen=True)
class Outcome:
    """What came of one `fit`.

    Attributes:
        ended: "finished", or the exception's name; "SystemExit 143" with its status.
        steps: Epoch, batch and loss of every step that was run.
        ended_at: When each of them ended, in seconds since 1970.
        digest: Of all variables, optimizer variables and History at the end of training; empty if it did not end.
    """

    ended: str
    steps: list[tuple[int, int, float]]
    ended_at: list[float]
    digest: str


@dataclass
class NoticedFit:
    """One run in one directory, whose `fit` is called again and again.

    Attributes:
        directory: Of the run.
        epochs: How many.
        member: The index of this worker.
        strategy: A strategy of several workers, or None.
        model: What is trained, from the beginning in each `fit`; one of the job's own by default.
        batches: Steps of an epoch.
        outcomes: What came of each `fit`.
    """

    directory: Path
    epochs: int = 3
    member: int = 0
    strategy: Any = None
    model: Model | None = None
    batches: int = STEPS
    outcomes: list[Outcome] = field(default_factory=list)

    def fit(
        self,
        actions: Actions | None = None,
        *,
        termination: Mapping[str, Any] | None = None,
        plain: bool = False,
        **program: Any,
    ) -> Outcome:
        """Trains as a process does that is started again: from the beginning or a checkpoint.

        Args:
            actions: What is to happen.
            termination: Arguments of TerminationConfig. Without an exit_fn among them, one that returns.
            plain: Without the PreemptionCallback.
            program: Further arguments of `Program`.
        """
        if self.model is None:
            self.model = Model(self.strategy)
        self.model.begin_anew()
        fits.forget()
        keras.utils.set_random_seed(7)
        doing = Program(actions or {}, **program)
        config = TerminationConfig(**{"exit_fn": lambda: None, **(termination or {})})
        ours = [] if plain else [PreemptionCallback(self.directory, termination=config)]
        ended, digest = "finished", ""
        try:
            history = self.model.keras.fit(
                make_data(self.batches),
                epochs=self.epochs,
                shuffle=False,
                verbose=0,
                callbacks=[*ours, doing],
            )
            digest = self.model.digest(history.history)
        except Preempted:
            ended = "Preempted"
        except SystemExit as error:
            ended = f"SystemExit {error.code}"
        except (ExpectedError, KeyboardInterrupt) as error:
            ended = type(error).__name__
        outcome = Outcome(ended, doing.run, doing.ended_at, digest)
        self.outcomes.append(outcome)
        return outcome

    def assert_nothing_lost(self, undisturbed: Outcome) -> None:
        """The fits together are that one: the same steps, none left out and none run twice, and the same end."""
        assert self.steps == undisturbed.steps
        assert self.outcomes[-1].digest == undisturbed.digest != ""

    @property
    def steps(self) -> list[tuple[int, int, float]]:
        """Those of all fits."""
        return [step for outcome in self.outcomes for step in outcome.steps]

    def told(self, kind: str) -> list[dict[str, Any]]:
        """The events of that kind that this worker has told in all fits."""
        found = []
        for path in sorted(self.directory.glob(f"events/*.w{self.member:05d}.jsonl")):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n") and (event := json.loads(line))["event"] == kind:
                    found.append(event)
        return found

    def await_told(self, kind: str, count: int = 1) -> None:
        """Waits until so many events of that kind were told."""
        await_(lambda: len(self.told(kind)) >= count, PATIENCE, f"no {kind} was told")

    @property
    def checkpoints(self) -> list[str]:
        """The steps of the committed checkpoints."""
        return sorted(path.parent.parent.name for path in self.directory.glob("step-*/*/MANIFEST.json"))


class ExpectedError(Exception):
    """Raised by a test's own function."""


class Model:
    """A small model with dropout. It is compiled once: a fit costs little more than its steps.

    Args:
        strategy: A strategy of several workers, or None.
        loss: In place of the mean squared error.
        units: Of the hidden layer.
        kind: A subclass of Sequential.
    """

    def __init__(
        self,
        strategy: Any = None,
        loss: Callable[[Any, Any], Any] | None = None,
        units: int = 8,
        kind: type[keras.Sequential] = keras.Sequential,
    ) -> None:
        self._strategy = strategy or tf.distribute.get_strategy()
        keras.utils.set_random_seed(7)
        with self._strategy.scope():
            # Named, because Keras counts on within a process, which would make it another model.
            layers = [
                keras.layers.Dense(units, activation="relu", name="hidden"),
                keras.layers.Dropout(0.3, seed=3, name="dropout"),
                keras.layers.Dense(1, name="last"),
            ]
            self.keras = kind([keras.Input((4,)), *layers], name="noticed")
            self.keras.compile(keras.optimizers.Adam(0.01, name="adam"), loss or "mse", jit_compile=False)
            self.keras.optimizer.build(self.keras.trainable_variables)
        self._variables = [*self.keras.variables, *self.keras.optimizer.variables]
        self._initial = [np.array(variable) for variable in self._variables]

    def begin_anew(self) -> None:
        """As it was when it was made."""
        with self._strategy.scope():
            for variable, value in zip(self._variables, self._initial, strict=True):
                variable.assign(value)

    def digest(self, history: Mapping[str, Any]) -> str:
        """Of all that training ends with, and of its History."""
        found = hashlib.sha256(json.dumps(history, sort_keys=True).encode())
        for variable in [*self._variables, *self.keras.metrics_variables]:
            for value in self._strategy.experimental_local_results(variable.value):
                found.update(np.asarray(value).tobytes())
        return found.hexdigest()


def make_data(batches: int) -> tf.data.Dataset:
    x = np.random.default_rng(5).normal(size=(batches * BATCH, 4)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1] * 2))
    return fits.untuned(data.shuffle(len(x), seed=5).batch(BATCH, drop_remainder=True))
