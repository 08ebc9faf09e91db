"""What `train.py` trains with where Keras runs on torch: a `DataLoader` in one process, under no strategy."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Alone:
    """Has what the script asks of a strategy."""

    scope = staticmethod(contextlib.nullcontext)

    def experimental_local_results(self, value: Any) -> list[np.ndarray]:
        return [value.detach().cpu().numpy()]


class Samples(Dataset):
    """Samples that are read by index, in the process that trains or in its workers."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self._x, self._y = x, y

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int32]:
        return self._x[index], self._y[index]


def make_data(
    x: np.ndarray, y: np.ndarray, batch: int, workers: int, validation_workers: int
) -> tuple[DataLoader, DataLoader]:
    """Returns the data to train on, and that to validate on, each in an order that is drawn for each epoch.

    One worker is started for each epoch; more are kept.
    """

    def loader(count: int, workers: int, **own: Any) -> DataLoader:
        options = {"batch_size": batch, "shuffle": True, "drop_last": True, **own}
        data = Samples(x[:count], y[:count])
        return DataLoader(data, num_workers=workers, persistent_workers=workers > 1, **options)

    own = torch.Generator().manual_seed(9)
    return loader(len(x), workers), loader(32, validation_workers, generator=own)
