"""A `torch.utils.data.DataLoader` from a later batch on: its sampler is advanced, and no sample before that is read.

The order of an epoch is drawn when its first batch is, or, with worker processes, when they are started. So an iterator
is made again with the random generators as they were at both moments.

Verified with torch 2.6.0 to 2.15.0; tests/backend/torch/test_canaries.py has a canary for each private name.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from keras_preempt.backend.torch.workers import deaf_to_notices


def is_read_by_index(loader: Any) -> bool:
    """Whether the samples of a loader are asked for by index, in an order that a sampler gives."""
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


def tells_place(loader: Any) -> bool:
    """Whether a loader of a stream tells where it is: torchdata's, if the dataset does, by plain data."""
    if not isinstance(loader, DataLoader) or is_read_by_index(loader):
        return False
    methods = ("state_dict", "load_state_dict")
    has_all = all(
        callable(getattr(each, name, None)) for each in (loader, loader.dataset) for name in methods
    )
    return has_all and _is_plain(loader.dataset.state_dict())


def state_of(loader: Any) -> Any:
    """Returns where a loader is, as it is now: what it tells may be what its dataset goes on changing.

    None if that has come to hold what is no plain data.
    """
    state = loader.state_dict()
    return copy.deepcopy(state) if _is_plain(state) else None


def begun_from(loader: Any, state: Any, skip: int) -> Iterator[Any]:
    """Returns an iterator of a loader from a state on, without the first batches after it."""
    loader.load_state_dict(state)
    batches = begun(loader)
    for _ in range(skip):
        next(batches, None)
    return batches


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(name, str) and _is_plain(each) for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int, float, np.ndarray, np.generic))


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


def begun(loader: Any) -> Iterator[Any]:
    """Returns an iterator of a loader, also one of a class with its own `__iter__`; its workers are deaf to notices."""
    with deaf_to_notices(loader):
        return iter(loader)


def start_workers(loader: Any) -> None:
    """Has a loader with persistent workers start them, which draws their seed, and gives them nothing to do."""
    with _sampled_by(loader) as rest:
        rest.is_empty = True
        begun(loader)


def make_again(loader: Any, skip: int, within: Callable[[Callable[[], Any]], Any]) -> Iterator[Any]:
    """Returns an iterator of a loader without the first batches.

    `within` is called with what draws the order of these, when the first batch is drawn that is left.
    """
    with _sampled_by(loader) as rest:
        rest.skip, rest.within = skip, within
        return begun(loader)


class _Rest:
    """Stands in for a sampler, and asks that for an order as often as it is asked itself: it may draw from a generator.

    Of all its orders, the first one that is drawn from begins at a later batch.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.skip = 0
        self.within: Callable[[Callable[[], Any]], Any] = lambda draw: draw()
        self.is_empty = False
        self._asked = 0

    def __iter__(self) -> Iterator[Any]:
        self._asked += 1
        # The order for which workers are started; it is asked for later.
        if self.is_empty and self._asked > 1:
            return iter(())
        return self._rest_of(iter(self.sampler))

    def _rest_of(self, order: Iterator[Any]) -> Iterator[Any]:
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
    # A loader refuses another sampler, but looks its own up when it makes an iterator. The one of persistent workers
    # keeps it.
    attributes = vars(loader)
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    sampler = attributes[name]

    def put(one: Any) -> None:
        attributes[name] = one
        if keeps_workers(loader):
            loader._iterator._index_sampler = one

    rest = _Rest(sampler)
    put(rest)
    try:
        yield rest
    finally:
        put(sampler)
