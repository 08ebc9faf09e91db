"""What snapshots of a distributed input cost training: the same fit with them and without, in turns.

Trains a small convolutional network under MirroredStrategy with two replicas, in one process, on shuffled images that
are repeated. Fits with and without snapshots take turns. Prints how long a step takes in wall time and in processor
time, how many snapshots were taken, and what share of training they took. The size of a snapshot, and how much longer
a save is for it, are printed as well.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_PREEMPT_PLATFORM", "generic")
sys.path.insert(0, str(Path(__file__).parent / "scripts"))

import keras
import resumed_fit
from figures import Aims, conditions, table, tell, unsteady

from keras_preempt import PreemptionCallback
from keras_preempt.backend.tensorflow.backend import TensorFlowBackend
from keras_preempt.state.snapshots import Snapshots

SHARE = 0.01
"""The most of the time of training that snapshots may take, and the most by which they may slow it down."""


@dataclass(frozen=True)
class Fitted:
    """One fit: seconds of wall time and of processor time, and the snapshots that it took."""

    wall: float
    processor: float
    snapshots: int
    in_snapshots: float
    size: int


class Taken:
    """Records how long each snapshot takes."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.size = 0
        original = Snapshots.take

        def take(snapshots: Snapshots, batches: int) -> bool:
            began = time.perf_counter()
            taken = original(snapshots, batches)
            self.seconds.append(time.perf_counter() - began)
            self.size = snapshots.held
            return taken

        Snapshots.take = take  # type: ignore[method-assign]


def fit(strategy: Any, steps: int, taken: Taken) -> Fitted:
    """Trains for so many steps, the first of which, with which a fit begins, are not measured."""
    began: list[tuple[float, float]] = []

    class Clock(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
            """The first epoch begins the fit; the second is measured."""
            began.append((time.perf_counter(), time.process_time()))
            if epoch == 1:
                taken.seconds.clear()

        def get_state(self) -> dict[str, object]:
            """Nothing to keep."""
            return {}

        def set_state(self, state: dict[str, object]) -> None:
            """Nothing was kept."""

    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = resumed_fit.model()
    data = resumed_fit.data(resumed_fit.STATE, steps, endless=True)
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [Clock(), PreemptionCallback(folder)]
        model.fit(data, epochs=2, steps_per_epoch=steps, verbose=0, callbacks=callbacks)
    wall, processor = began[1]
    seconds = list(taken.seconds)
    return Fitted(
        time.perf_counter() - wall, time.process_time() - processor, len(seconds), sum(seconds), taken.size
    )


def report(with_them: Sequence[Fitted], without: Sequence[Fitted], steps: int, aims: Aims) -> str:
    """Returns the table, and judges the share of snapshots and the whole fit."""

    def median(fits: Sequence[Fitted], of: Callable[[Fitted], float]) -> float:
        return statistics.median(map(of, fits))

    rows = [
        [
            title,
            f"{1000 * median(fits, lambda each: each.wall) / steps:.2f}",
            f"{1000 * median(fits, lambda each: each.processor) / steps:.2f}",
            f"{median(fits, lambda each: each.snapshots):.0f}",
            f"{100 * median(fits, lambda each: each.in_snapshots / each.wall):.2f} %",
        ]
        for title, fits in (("with snapshots", with_them), ("without", without))
    ]
    share = max(each.in_snapshots / each.wall for each in with_them)
    slower = median(with_them, lambda each: each.processor) / median(without, lambda each: each.processor)
    aims.check("share of training in snapshots, the worst fit", 100 * share, "at most", 100 * SHARE, " %")
    unsure = unsteady([each.processor for each in without]) or (
        "" if len(without) > 1 else "there was one fit of each kind"
    )
    aims.check("processor time with snapshots / without", slower, "at most", 1 + SHARE, unsure=unsure)
    tell("a fit with snapshots of its input", "without", slower, better="less")
    size = max(each.size for each in with_them)
    header = ["a step", "wall, ms", "processor, ms", "snapshots", "share"]
    return f"{table(header, rows)}\n\nA snapshot has {size / 2**20:.1f} MiB."


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=1000, help="steps of each fit that are measured")
    parser.add_argument("--turns", type=int, default=5, help="fits of each kind")
    parser.add_argument("--quick", action="store_true", help="one short fit of each kind, no aims")
    options = parser.parse_args(arguments)
    if options.quick:
        options.steps, options.turns = 30, 1
    print(conditions(), flush=True)
    strategy = resumed_fit.strategy_of(mirrored=True)
    taken, tap = Taken(), TensorFlowBackend.tap
    fits: dict[bool, list[Fitted]] = {True: [], False: []}
    for _ in range(options.turns):
        for snapshots in (True, False):
            TensorFlowBackend.tap = staticmethod(tap if snapshots else lambda distributed: None)
            taken.seconds.clear()
            fits[snapshots].append(fit(strategy, options.steps, taken))
    aims = Aims(apply=not options.quick)
    print(report(fits[True], fits[False], options.steps, aims))
    return aims.report()


if __name__ == "__main__":
    sys.exit(main())
