"""What a snapshot of the input costs the save of a preemption: the same save with one and without, in turns.

Part of `snapshot_cost.py`. A fit under MirroredStrategy gets SIGTERM, and its events say how long the save took: from
when training stopped until the checkpoint was committed. The snapshot is taken with a full shuffle buffer. How much
longer the save is for it depends on what else is saved, so there are two models: the small one of `snapshot_cost.py`,
whose state is no larger than the snapshot, and the same with as many weights as larger models have, which is judged.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import resumed_fit
from figures import Aims, table, tell, unsteady
from taken import Taken, allow_snapshots

from keras_preempt import Preempted, PreemptionCallback, TerminationConfig

SLOWER = 1.1
"""The most that a save with a snapshot may take, over one without."""

WEIGHTS = (0, 128_000_000)
"""Bytes of state that each model has in addition; a ResNet-50 with Adam has more than twice as many as the second."""

_TAKEN, _PREEMPTED = 4, 16  # steps; those between are more than the strategy draws ahead of training

Saves = dict[int, dict[bool, list["PreemptionSave"]]]
"""By the bytes that the model has in addition, and by whether there were snapshots."""


@dataclass(frozen=True)
class PreemptionSave:
    """One save, by its events.

    Attributes:
        seconds: From when training stopped for it until it was committed.
        answered: From the notice until then.
        size: Bytes of the checkpoint.
    """

    seconds: float
    answered: float
    size: int


class Weights(keras.layers.Layer):  # type: ignore[misc]
    """Holds weights that are saved, with two slots of Adam for each, and that a step does not touch."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.add_weight((size // 12,), "random_uniform")

    def call(self, inputs: Any) -> Any:
        """Hands on what it is given."""
        return inputs


class Preemption(keras.callbacks.Callback):  # type: ignore[misc]
    """Has a snapshot taken if there are any in this fit, and some steps later sends this process SIGTERM."""

    def __init__(self, taken: Taken) -> None:
        super().__init__()
        self._taken = taken

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Another step is done."""
        if batch == _TAKEN and self._taken.of is not None:
            self._taken.of.take(batch)
        if batch == _PREEMPTED:
            os.kill(os.getpid(), signal.SIGTERM)

    def get_state(self) -> dict[str, object]:
        """Nothing to keep."""
        return {}

    def set_state(self, state: dict[str, object]) -> None:
        """Nothing was kept."""


def measure(strategy: Any, repetitions: int, taken: Taken, weights: Sequence[int] = WEIGHTS) -> Saves:
    """Preempts fits of each model with snapshots and without, in turns; the first of each kind warms up."""
    saves: Saves = {}
    for size in weights:
        with strategy.scope():
            model = resumed_fit.model()
            if size:
                model.add(Weights(size))
        saves[size] = {True: [], False: []}
        for number in range(repetitions + 1):
            for snapshots in (True, False) if number % 2 else (False, True):
                allow_snapshots(snapshots)
                save = preempted(model, taken)
                if number:
                    saves[size][snapshots].append(save)
    allow_snapshots(True)
    return saves


def preempted(model: keras.Model, taken: Taken) -> PreemptionSave:
    """Preempts one fit, and reads its events.

    Raises:
        RuntimeError: It was not preempted.
    """
    taken.forget()
    steps = 2 * _PREEMPTED
    data = resumed_fit.data(resumed_fit.STATE, steps, endless=True)
    with tempfile.TemporaryDirectory() as folder:
        callback = PreemptionCallback(folder, termination=TerminationConfig(exit_fn=lambda: None))
        try:
            model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=[callback, Preemption(taken)])
        except Preempted:
            lines = Path(folder, "events").glob("*.jsonl")
            events = {event["event"]: event for path in lines for event in map(json.loads, path.open())}
            size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        else:
            raise RuntimeError("Expected the fit to be preempted. Received: one that came to its end.")
    committed = events["commit"]["time"]
    return PreemptionSave(
        committed - events["save"]["began_at"], committed - events["notice"]["received_at"], size
    )


def report(saves: Saves, aims: Aims) -> str:
    """Returns the table, and judges the save of the model with the most weights."""

    def median(of: Sequence[PreemptionSave], what: Callable[[PreemptionSave], float]) -> float:
        return statistics.median(map(what, of))

    rows = []
    for size, kinds in saves.items():
        with_it, without = kinds[True], kinds[False]
        state = median(without, lambda save: save.size)
        name = f"a preemption save of {state / 1e6:.0f} MB"
        seconds, answered = (
            [median(each, what) for each in (without, with_it)]
            for what in (lambda save: save.seconds, lambda save: save.answered)
        )
        slower = seconds[1] / seconds[0]
        rows.append(
            [
                name,
                *(f"{1000 * each:.0f}" for each in seconds),
                f"{slower:.2f}",
                *(f"{1000 * each:.0f}" for each in answered),
                f"{(median(with_it, lambda save: save.size) - state) / 1e6:.1f}",
            ]
        )
        tell(f"{name} with a snapshot", "without", slower, better="less")
        if size == max(saves):
            unsure = unsteady([save.seconds for save in without])
            aims.check(f"{name} with a snapshot / without", slower, "at most", SLOWER, unsure=unsure)
    header = ["ms, the median", "without", "with a snapshot", "ratio", "from notice", "with", "snapshot, MB"]
    return table(header, rows)
