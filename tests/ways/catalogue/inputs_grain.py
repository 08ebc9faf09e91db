"""Data that comes from Grain: a part of the table of `inputs_python`."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from tests.ways.catalogue.basics import BATCH, STEPS, fitted, model, samples
from tests.ways.catalogue.inputs_tfdata import GIVES_THE_SAME, LENGTH
from tests.ways.late import Late
from tests.ways.way import MIRRORED, ONE, WORKERS, Exact, KerasFails, Run, Way, everywhere

grain = Late("grain")


def _rows() -> Any:
    x, y = samples()
    return grain.MapDataset.source(range(len(x))).shuffle(seed=3).map(lambda i: (x[i], y[i]))


def _windows() -> Any:
    rows = _rows().repeat().to_iter_dataset()
    return grain.experimental.WindowShuffleIterDataset(rows, window_size=20, seed=5).batch(BATCH)


def _parse_flags() -> None:
    """As `absl.app.run` does: Grain's processes are told flags, and take none from a program that has parsed none."""
    from absl import flags

    flags.FLAGS(sys.argv[:1])


def _grain_processes(run: Run) -> None:
    _parse_flags()
    rows = grain.MapDataset.source(Rows()).shuffle(seed=3).batch(BATCH).to_iter_dataset()
    run.fit(model(run), rows.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=2)))


class Rows:
    """The samples, for worker processes as well."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: Any) -> Any:
        x, y = samples()
        return x[int(index)], y[int(index)]

    def __repr__(self) -> str:
        return "Rows"


def grain_loader(epochs: int | None = 1, workers: int = 0, **fit: Any) -> Callable[[Run], None]:
    def train(run: Run) -> None:
        if workers:
            _parse_flags()
        sampler = grain.samplers.IndexSampler(STEPS * BATCH, shuffle=True, seed=3, num_epochs=epochs)
        operations = [grain.transforms.Batch(BATCH)]
        loader = grain.DataLoader(
            data_source=Rows(), sampler=sampler, operations=operations, worker_count=workers
        )
        try:
            run.fit(model(run), loader, **fit)
        except Exception:
            traceback.print_exc()
            os._exit(1)  # Otherwise processes of Grain may keep this one from ending.

    return train


WAYS = (
    Way(
        "grain",
        "Grain `MapDataset`",
        fitted(lambda: _rows().batch(BATCH)),
        {ONE: Exact(GIVES_THE_SAME), MIRRORED: LENGTH, WORKERS: LENGTH},
        strikes=("batch 14",),
        drawn=1,
    ),
    Way(
        "grain-steps",
        "Grain `MapDataset`, `.repeat()` and `steps_per_epoch`",
        fitted(lambda: _rows().repeat().batch(BATCH), steps_per_epoch=STEPS),
        everywhere(Exact(GIVES_THE_SAME)),
        strikes=("batch 9", "batch 2"),
        drawn=1,
    ),
    Way(
        "grain-iter",
        "Grain `IterDataset`, shuffled in windows, `.repeat()` and `steps_per_epoch`",
        fitted(_windows, steps_per_epoch=STEPS),
        everywhere(Exact(GIVES_THE_SAME)),
        strikes=("batch 9", "batch 2"),
        drawn=1,
    ),
    Way(
        "grain-loader",
        "Grain `DataLoader`",
        grain_loader(),
        {ONE: Exact(GIVES_THE_SAME), MIRRORED: LENGTH, WORKERS: LENGTH},
        drawn=1,
    ),
    Way(
        "grain-loader-steps",
        "Grain `DataLoader` with `steps_per_epoch`",
        grain_loader(epochs=None, steps_per_epoch=STEPS),
        everywhere(Exact(GIVES_THE_SAME)),
        drawn=1,
    ),
    Way(
        "grain-loader-processes",
        "Grain `DataLoader`, several processes",
        grain_loader(workers=2),
        {
            ONE: KerasFails(
                "its converter of batches cannot be pickled",
                "maximum recursion depth exceeded",
            )
        },
    ),
    Way(
        "grain-iter-processes",
        "Grain `IterDataset`, batches made by several processes (`mp_prefetch`)",
        _grain_processes,
        {ONE: Exact(GIVES_THE_SAME)},
        drawn=1,
    ),
)
