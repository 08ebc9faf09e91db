"""A `torch.utils.data.DataLoader` from a later batch on: its sampler is advanced, and no sample before that is read.

The order of an epoch is drawn when its first batch is, or, with worker processes, when they are started. So an iterator
is made again with the random generators as they were at both moments.

Verified with torch 2.14.1; tests/backend/torch/test_canaries.py has a canary for each private name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

_HERE = "_keras_preempt_rest"


def is_read_by_index(loader: Any) -> bool:
    """Whether the samples of a loader are asked for by index, in an order that a sampler gives."""
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


def is_of_tensors(loader: Any) -> bool:
    """Whether nothing of the user's code takes part in making the batches of a loader."""
    known = (
        type(loader) is DataLoader,
        type(loader.dataset) is TensorDataset,
        type(loader.sampler).__module__.startswith("torch."),
        type(loader.batch_sampler).__module__.startswith("torch.") or loader.batch_sampler is None,
        str(getattr(loader.collate_fn, "__module__", "")).startswith("torch."),
    )
    return all(known)


def generators_of(loader: Any) -> list[torch.Generator]:
    """Returns the generators that a loader and its samplers have for themselves, each once."""
    samplers = [loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)]
    found: dict[int, torch.Generator] = {}
    for owner in (loader, *samplers):
        if isinstance(generator := getattr(owner, "generator", None), torch.Generator):
            found.setdefault(id(generator), generator)
    return list(found.values())


def keeps_workers(loader: Any) -> bool:
    """Whether a loader's next iterator is the last one again, with its worker processes: it draws no seed for them."""
    return getattr(loader, "_iterator", None) is not None


def start_workers(loader: Any) -> None:
    """Has a loader with persistent workers start them, which draws their seed, and gives them nothing to do."""
    with _sampled_by(loader) as rest:
        rest.is_empty = True
        iter(loader)
        rest.is_empty = False


def make_again(loader: Any, skip: int, within: Callable[[Callable[[], Any]], Any]) -> Iterator[Any]:
    """Returns an iterator of a loader without the first batches.

    `within` is called with what draws the order of these, when the first batch is drawn that is left.
    """
    with _sampled_by(loader) as rest:
        rest.skip, rest.within = skip, within
        return iter(loader)


class _Rest:
    """Stands in for a sampler. Its next order begins at a later batch; those after it are whole."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.skip = 0
        self.within: Callable[[Callable[[], Any]], Any] = lambda draw: draw()
        self.is_empty = False

    def __iter__(self) -> Iterator[Any]:
        if self.is_empty:
            return
        order = iter(self.sampler)
        skip, self.skip = self.skip, 0
        if skip:
            self.within(lambda: [next(order, None) for _ in range(skip)])
        yield from order

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sampler, name)


@contextlib.contextmanager
def _sampled_by(loader: Any) -> Iterator[_Rest]:
    # A loader refuses another sampler, but looks its own up when it makes an iterator. With persistent workers that
    # iterator, and so what stands in here, stays.
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    attributes = vars(loader)
    sampler = attributes[name]
    rest = attributes.setdefault(_HERE, _Rest(sampler)) if loader.persistent_workers else _Rest(sampler)
    attributes[name] = rest
    try:
        yield rest
    finally:
        attributes[name] = sampler
