"""What the callback costs a step on torch without a notice, in nanoseconds.

Begins a real fit in one process and, from inside it, drives the hooks of one step through that fit's own CallbackList,
again and again: with the callbacks that this package has put into it, and what it puts around the hooks, with an empty
callback, and with none. Keras on torch draws a batch before it calls the hooks of its step, so this package keeps the
states of the random generators before each draw: batches of a DataLoader are drawn with that and without, turn by turn
with these. One loader holds tensors, of which no user's code takes part, and one a Dataset of the user's own, which may
draw from Python's and NumPy's generators as well.

The table shows the whole call and, net, what is left without what one pays anyway: CallbackList itself, or the plain
draw. All is processor time of the measuring thread. The exit status is 1 if the aim is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from figures import ON_TORCH, Aims, conditions, table, tell

os.environ["KERAS_BACKEND"] = "torch"
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts"))

import keras
import numpy as np
import torch
from net_cost import NetCost
from torch.utils.data import DataLoader, Dataset, TensorDataset
from turns import Timer, driven, hooks, ours_of, running_container, take_turns

from keras_preempt import PreemptionCallback
from keras_preempt.backend.torch.feed import LiveIterator, TorchFeed

AIM = 500.0
"""Nanoseconds that both hooks of all our callbacks together may cost a step, net, as on TensorFlow."""

BATCH = 4


class Own(Dataset):  # type: ignore[type-arg]
    """A Dataset of the user's own, which could draw random numbers."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(2)


def draws(iterate: Callable[[], Iterator[Any]]) -> Timer:
    """Returns what draws batches of a new iterator."""

    def turn(steps: int) -> float:
        batches = iterate()
        next(batches)  # The order of the epoch is drawn with it.
        began = time.thread_time()
        for _ in range(steps):
            next(batches)
        return time.thread_time() - began

    return turn


def of_a_fit(loader: DataLoader[Any]) -> Iterator[Any]:
    """Returns an iterator as that of a fit under the callback."""
    feed = TorchFeed(keras.src.backend.torch.trainer.TorchEpochIterator(x=loader))
    feed.records = True
    return LiveIterator(feed).begin()


class Measure(keras.callbacks.Callback):  # type: ignore[misc]
    """Measures in the middle of the fit that it belongs to; see `take_turns`."""

    keeps_state = False

    def __init__(self, repetitions: int, steps: int, seed: int) -> None:
        super().__init__()
        self.results: dict[str, list[float]] = {}
        self.ours: list[str] = []
        self._turns = (repetitions, steps, seed)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Measures at the third step, when nothing is done for the first time."""
        if batch == 2:
            self.measure(running_container())

    def measure(self, running: Any) -> None:
        """Takes every contestant's turns; `running` is fit's own list of callbacks."""
        ours = ours_of(running)
        self.ours = [type(each).__name__ for each in ours]
        samples = (self._turns[1] + 1) * BATCH
        tensors = DataLoader(TensorDataset(torch.zeros(samples, 2)), batch_size=BATCH, shuffle=True)
        own = DataLoader(Own(samples), batch_size=BATCH, shuffle=True)
        before, running.callbacks = running.callbacks, ours
        try:
            contestants = {
                "none": hooks([]),
                "empty": hooks([keras.callbacks.Callback()]),
                "ours": driven(running),
                "tensors": draws(lambda: iter(tensors)),
                "our tensors": draws(lambda: of_a_fit(tensors)),
                "own": draws(lambda: iter(own)),
                "our own": draws(lambda: of_a_fit(own)),
            }
            self.results = take_turns(contestants, *self._turns)
        finally:
            running.callbacks = before


def measure(repetitions: int, steps: int, seed: int) -> Measure:
    """Runs the fit and returns what was measured in it."""
    x = np.zeros((16, 2), "float32")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    measured = Measure(repetitions, steps, seed)
    with tempfile.TemporaryDirectory() as directory:
        callbacks = [PreemptionCallback(os.path.join(directory, "run")), measured]
        model.fit(x, x[:, :1], batch_size=4, epochs=1, verbose=0, callbacks=callbacks)
    return measured


_BASELINE: Mapping[str, str] = {
    **dict.fromkeys(("none", "empty", "ours"), "none"),
    **dict.fromkeys(("tensors", "our tensors"), "tensors"),
    **dict.fromkeys(("own", "our own"), "own"),
}
"""What one pays anyway, of each contestant."""


def report(measured: Measure, aims: Aims) -> str:
    """Returns the table, and checks our net cost against its bound."""
    cost = NetCost(measured.results, _BASELINE, "empty")
    titles = {
        "none": "Keras CallbackList, no callbacks",
        "empty": "  with one empty keras.callbacks.Callback",
        "ours": f"  with {' and '.join(measured.ours)}",
        "tensors": "a batch of a DataLoader of tensors",
        "our tensors": "  in a fit under the callback",
        "own": "a batch of a DataLoader of a Dataset of one's own",
        "our own": "  in a fit under the callback",
    }
    rows = [cost.row(title, name) for name, title in titles.items()]
    tell(
        "the hooks of a step on torch, idle", "an empty callback of Keras", cost.ratio("ours"), better="less"
    )
    for name in ("tensors", "own"):
        plain, ours = (np.median(measured.results[each]) for each in (name, f"our {name}"))
        tell("a batch drawn on torch, idle", "a plain DataLoader", float(ours / plain), better="less")
    aims.check("hooks, net", cost.net["ours"], "below", AIM, " ns")
    header = ["ns per step", "median", "quartiles", "net", "net / empty"]
    return "\n".join([table(header, rows), "", cost.beside_an_empty_callback()])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=400, help="turns of each contestant, at least 2")
    parser.add_argument("--steps", type=int, default=500, help="steps in a turn")
    parser.add_argument("--seed", type=int, default=0, help="for the order of the turns")
    options = parser.parse_args(arguments)
    if options.repetitions < 2 or options.steps < 1:
        parser.error("Expected at least 2 repetitions of at least 1 step.")
    print(conditions(*ON_TORCH), flush=True)
    measured = measure(options.repetitions, options.steps, options.seed)
    aims = Aims()
    text = report(measured, aims)
    print(f"{options.repetitions} turns of {options.steps} steps each, in shuffled order\n\n{text}")
    return aims.report()


if __name__ == "__main__":
    sys.exit(main())
