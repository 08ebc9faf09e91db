"""What snapshots of a distributed input cost: the same training, and the same save, with them and without, in turns.

Trains a small convolutional network on shuffled images that are repeated: under MirroredStrategy with two replicas, in
this process, and with two workers under MultiWorkerMirroredStrategy. Fits with and without snapshots take turns. Prints
how long a step takes in wall time and in processor time, how many snapshots were taken, what share of the whole fit
they took, and how large they are.

Then `snapshot_save.py`: how much longer the save of a preemption is for a snapshot.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_PREEMPT_PLATFORM", "generic")
sys.path.insert(0, str(Path(__file__).parent / "scripts"))

import keras
import resumed_fit
import snapshot_save
from figures import Aims, conditions, table, tell, unsteady
from taken import Taken, allow_snapshots

from keras_preempt import PreemptionCallback
from keras_preempt.cluster import LocalCluster

SHARE = 0.01
"""The most of the time of training that snapshots may take, and the most by which they may slow it down."""

MIRRORED, WORKERS = "Mirrored(2)", "2 workers"

_TIMEOUT = 1200.0  # seconds for all fits of the workers


@dataclass(frozen=True)
class Fitted:
    """One fit.

    Attributes:
        wall: Seconds of the steps that are measured.
        processor: The same in processor time.
        whole: Seconds of all steps.
        snapshots: How many were taken in all.
        in_snapshots: Seconds that they took.
        size: Bytes of the newest one.
    """

    wall: float
    processor: float
    whole: float
    snapshots: int
    in_snapshots: float
    size: int

    @property
    def share(self) -> float:
        """What snapshots took of all that was trained: of a part, one more or less would decide."""
        return self.in_snapshots / self.whole


Fits = dict[bool, list[Fitted]]
"""By whether there were snapshots."""


def fit(strategy: Any, steps: int, taken: Taken, folder: str) -> Fitted:
    """Trains for so many steps, the first of which, with which a fit begins, are not measured."""
    began: list[tuple[float, float]] = []

    class Clock(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
            """The first epoch begins the fit; the second is measured."""
            began.append((time.perf_counter(), time.process_time()))

        def get_state(self) -> dict[str, object]:
            """Nothing to keep."""
            return {}

        def set_state(self, state: dict[str, object]) -> None:
            """Nothing was kept."""

    taken.forget()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = resumed_fit.model()
    data = resumed_fit.data(resumed_fit.STATE, steps, endless=True)
    callbacks = [Clock(), PreemptionCallback(folder)]
    model.fit(data, epochs=2, steps_per_epoch=steps, verbose=0, callbacks=callbacks)
    wall, processor = began[1]
    now = time.perf_counter()
    return Fitted(
        now - wall,
        time.process_time() - processor,
        now - began[0][0],
        len(taken.seconds),
        sum(taken.seconds),
        taken.size,
    )


def in_turns(strategy: Any, steps: int, turns: int, taken: Taken, folder: str) -> Fits:
    """Fits with snapshots and without, in folders of their own."""
    fits: Fits = {True: [], False: []}
    for turn in range(turns):
        for snapshots in (True, False):
            allow_snapshots(snapshots)
            run = str(Path(folder, f"{turn}-{snapshots}"))
            fits[snapshots].append(fit(strategy, steps, taken, run))
    allow_snapshots(True)
    return fits


def of_workers(steps: int, turns: int) -> Fits:
    """Has two workers fit, each step together; returns the fits of both.

    Raises:
        RuntimeError: A worker has failed; holds the last lines.
    """
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--worker-in", folder]
        command += ["--steps", str(steps), "--turns", str(turns)]
        with LocalCluster(2, command, log=lambda worker, line: lines.append(f"w{worker}: {line}")) as cluster:
            codes = [end.code for end in cluster.wait(_TIMEOUT)]
        if any(codes):
            raise RuntimeError("\n".join([f"Expected exit codes 0. Received: {codes}.", *lines[-40:]]))
        told = [json.loads(Path(folder, f"fits-{worker}.json").read_text()) for worker in range(2)]
    return {
        snapshots: [Fitted(**each) for fits in told for each in fits[number]]
        for number, snapshots in enumerate((True, False))
    }


def work(folder: str, steps: int, turns: int) -> None:
    """Fits as one of the workers, and writes the figures for `of_workers`."""
    worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    fits = in_turns(resumed_fit.strategy_of(mirrored=False), steps, turns, Taken(), folder)
    told = [[asdict(each) for each in fits[snapshots]] for snapshots in (True, False)]
    Path(folder, f"fits-{worker}.json").write_text(json.dumps(told))


def report(places: dict[str, tuple[int, Fits]], aims: Aims) -> str:
    """Returns the table, and judges the share of snapshots, and the whole fit in one process.

    Args:
        places: The steps and the fits of each.
        aims: Gets the figures.
    """

    def median(fits: Sequence[Fitted], of: Callable[[Fitted], float]) -> float:
        return statistics.median(map(of, fits))

    rows = []
    for place, (steps, by_kind) in places.items():
        for title, fits in (("with snapshots", by_kind[True]), ("without", by_kind[False])):
            rows.append(
                [
                    f"{place}, {title}",
                    f"{1000 * median(fits, lambda each: each.wall) / steps:.2f}",
                    f"{1000 * median(fits, lambda each: each.processor) / steps:.2f}",
                    f"{median(fits, lambda each: each.snapshots):.0f}",
                    f"{max(each.size for each in fits) / 2**20:.1f}",
                    f"{100 * median(fits, lambda each: each.share):.2f} %",
                ]
            )
        share = max(each.share for each in by_kind[True])
        what = f"{place}: share of training in snapshots, the worst fit"
        aims.check(what, 100 * share, "at most", 100 * SHARE, " %")
    with_them, without = (places[MIRRORED][1][snapshots] for snapshots in (True, False))
    slower = median(with_them, lambda each: each.processor) / median(without, lambda each: each.processor)
    unsure = unsteady([each.processor for each in without]) or (
        "" if len(without) > 1 else "there was one fit of each kind"
    )
    aims.check(
        f"{MIRRORED}: processor time with snapshots / without", slower, "at most", 1 + SHARE, unsure=unsure
    )
    tell("a fit with snapshots of its input", "without", slower, better="less")
    header = ["a step", "wall, ms", "processor, ms", "snapshots", "MiB of one", "share"]
    return table(header, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=1000, help="steps of each fit that are measured")
    parser.add_argument("--turns", type=int, default=5, help="fits of each kind; of the workers, up to 2")
    parser.add_argument("--saves", type=int, default=9, help="of each kind and model")
    parser.add_argument("--quick", action="store_true", help="one short fit and save of each kind, no aims")
    parser.add_argument(
        "--worker-in", help="fit as one of the workers, and write the figures into this folder"
    )
    options = parser.parse_args(arguments)
    if options.quick:
        options.steps, options.turns, options.saves = 30, 1, 1
    if options.worker_in:
        work(options.worker_in, options.steps, options.turns)
        return 0
    print(conditions(), flush=True)
    strategy, taken = resumed_fit.strategy_of(mirrored=True), Taken()
    with tempfile.TemporaryDirectory() as folder:
        fits = in_turns(strategy, options.steps, options.turns, taken, folder)
    # A step of theirs takes about twice as long.
    workers_steps, workers_turns = options.steps // 2, min(options.turns, 2)
    places = {
        MIRRORED: (options.steps, fits),
        WORKERS: (workers_steps, of_workers(workers_steps, workers_turns)),
    }
    aims = Aims(apply=not options.quick)
    print(report(places, aims), flush=True)
    weights = snapshot_save.WEIGHTS[:1] if options.quick else snapshot_save.WEIGHTS
    saves = snapshot_save.measure(strategy, options.saves, taken, weights)
    print(f"\n{snapshot_save.report(saves, aims)}")
    return aims.report()


if __name__ == "__main__":
    sys.exit(main())
