"""The batches that Keras makes of arrays on JAX, from a later batch on.

Keras draws the order of an epoch from NumPy's global random state when the first batch is drawn. From the same state
the order can be drawn again, and the first batches left out without taking a sample.

Verified with Keras 3.15.1; tests/backend/jax/test_array_batches.py has the canaries.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np


def is_of_arrays(adapter: Any) -> bool:
    """Whether Keras' adapter of some data is the one of arrays."""
    return type(adapter).__name__ == "ArrayDataAdapter" and hasattr(adapter, "_get_iterator")


@contextlib.contextmanager
def beginning_at(adapter: Any, batch: int, order: Any) -> Iterator[None]:
    """Makes the adapter's next iterator begin at a batch, for the duration of the block.

    The order is drawn from `order`, a random state of NumPy's; NumPy's present state does not change.
    """
    present = np.random.get_state()
    np.random.set_state(order)
    try:
        batches = _without_first(adapter, batch)
    finally:
        np.random.set_state(present)
    vars(adapter)["get_jax_iterator"] = lambda: batches
    try:
        yield
    finally:
        vars(adapter).pop("get_jax_iterator", None)


def _without_first(adapter: Any, count: int) -> Iterator[Any]:
    left_out = True
    rows = adapter._get_iterator

    def get_iterator(take: Any, inputs: Any) -> Iterator[Any]:
        return iter(
            rows(lambda each, indices=None: None if left_out else take(each, indices=indices), inputs)
        )

    vars(adapter)["_get_iterator"] = get_iterator
    try:
        batches: Iterator[Any] = adapter.get_jax_iterator()
    finally:
        vars(adapter).pop("_get_iterator", None)
    for _ in range(count):
        next(batches, None)
    left_out = False
    return batches
