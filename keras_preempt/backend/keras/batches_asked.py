"""Finds out whether the batches of a `keras.utils.PyDataset` depend on those before them, from what training draws.

Keras asks a dataset for its first batches before a fit begins, to learn their types or to build the model, and for the
same ones again in the first epoch. No further batches are requested: a dataset may count the requests.

Verified with Keras 3.8.0 to 3.15.1; `tests/backend/keras/test_batches_asked.py` has the canaries.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_preempt.backend.keras.names import STANDARDIZE_BATCH
from keras_preempt.backend.keras.replacing import Replacements

_MOST = 4
"""How many batches from before the first epoch are kept: TensorFlow draws two for their types, the model takes one."""

_SAMPLED = 256
"""Elements of an array that are compared first; the others only if these are the same."""

_HERE = "_keras_preempt_batches"


class BatchesAsked:
    """The batches that Keras was given before the first epoch of a fit, and whether it was given them again in it.

    `independent`: a batch of the dataset does not depend on which ones were requested before it, as far as is known.
    """

    def __init__(self) -> None:
        self._before: dict[int, int] = {}  # By the checksum of what is compared first: that of everything.
        self._state = "before"
        self._given = 0  # In the first epoch.
        self._judges = True
        self.independent = False

    def begin_epoch(self) -> None:
        self._state = "first" if self._state == "before" and self._before else "over"

    def end_epoch(self, batches: int | None) -> bool:
        """Called when an epoch of so many batches has ended, perhaps early.

        Returns, once, whether the dataset has given other batches in it than before the first epoch.
        """
        differ = self._state == "first" and self._judges and self._given == batches
        self.independent &= not differ
        self._state = "over"
        return differ

    def resume(self, independent: bool) -> None:
        """Called when training resumes, with what the earlier process has found."""
        self.independent = independent
        self._judges = False  # They may differ because of what the dataset had become by then.

    def given(self, batch: Any) -> None:
        """Called with each batch that the dataset has given, in the thread that asked for it."""
        if self._state == "over" or (self._state == "before" and len(self._before) == _MOST):
            return
        arrays = _arrays(batch)
        if arrays is None:  # What it holds cannot be compared.
            self._state = "over"
            return
        looked_at = _checksum(array.flat[:: 1 + array.size // _SAMPLED] for array in arrays)
        if self._state == "before":
            self._before[looked_at] = _checksum(arrays)
            return
        self._given += 1
        if looked_at in self._before and self._before[looked_at] == _checksum(arrays):
            del self._before[looked_at]
            self.independent = True
            if not self._before:
                self._state = "over"


def _arrays(batch: Any) -> list[np.ndarray[Any, Any]] | None:
    leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]
    if not all(isinstance(leaf, (np.ndarray, np.generic)) or keras.ops.is_tensor(leaf) for leaf in leaves):
        return None
    arrays = [np.asarray(leaf) for leaf in leaves]
    return None if any(array.dtype == object for array in arrays) else arrays


def _checksum(arrays: Any) -> int:
    found = 0
    for array in arrays:
        found = zlib.crc32(f"{array.dtype} {array.shape}".encode(), found)
        found = zlib.crc32(np.ascontiguousarray(array).tobytes(), found)
    return found


def batches_of(adapter: Any) -> BatchesAsked:
    """Returns what is known of the dataset behind one of Keras' data adapters."""
    known: BatchesAsked = vars(adapter).setdefault(_HERE, BatchesAsked())
    return known


def _see_every_batch(replacements: Replacements) -> None:
    standardize = STANDARDIZE_BATCH.find()

    @functools.wraps(standardize)
    def observed(adapter: Any, batch: Any) -> Any:
        standardized = standardize(adapter, batch)
        batches_of(adapter).given(standardized)
        return standardized

    replacements.replace(STANDARDIZE_BATCH.owner(), STANDARDIZE_BATCH.attribute, observed)


_watch = Replacements(_see_every_batch)


def watch() -> Callable[[], None]:
    """Looks at what PyDatasets give from now on; returns a function that ends that, to be called once.

    Raises KerasInternalsError if `STANDARDIZE_BATCH` is not there.
    """
    _watch.acquire()
    return _watch.release
