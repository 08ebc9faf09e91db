"""A `keras.utils.PyDataset` in the middle of an epoch: asked only for the rest of its batches.

Keras asks it for one batch after the other, in an order that it draws from Python's random state as the epoch begins.
Here the order is drawn in the same way, and its first batches are left out.

Verified with Keras 3.8.0 to 3.15.1; `tests/backend/keras/test_py_batches.py` has the canaries.
"""

from __future__ import annotations

import contextlib
import queue
import random
from collections.abc import Iterator, Sequence
from typing import Any

_NEEDS = ("_finite_generator", "_finite_enqueuer_generator", "_standardize_batch", "enqueuer", "shuffle")
_NEEDS_OF_ENQUEUER = ("_run", "_send_py_dataset", "get", "stop", "py_dataset", "shuffle")


def has_workers(adapter: Any) -> bool:
    """Whether threads or processes of Keras ask the dataset for batches ahead."""
    return getattr(adapter, "enqueuer", None) is not None


def pass_goes_on(epoch_iterator: Any) -> bool:
    """Whether Keras' workers begin a new order in the middle of a pass through the dataset.

    With `steps_per_epoch` a pass does not end with the epoch, but Keras restarts its workers at the end of each epoch,
    with a new order behind the batches that they had fetched of the previous one.
    """
    adapter = epoch_iterator.data_adapter
    finite = has_workers(adapter) and adapter.num_batches is not None
    return finite and epoch_iterator.steps_per_epoch is not None


def forget_fetched(adapter: Any) -> int:
    """Drops the batches that workers have fetched before a fit begins, beyond the one that Keras built the model with.

    Keras would train on them first, and end each epoch as many batches before the end of its order. These are left to
    the next epoch, but its workers and the end of the epoch race for them, so that each run loses others, which no
    restart could repeat: see `test_py_batches.py`. Batches of a dataset of unknown length are left alone, as they
    follow each other. The adapter may be that of any data, and its epoch must not have begun. Returns their number.
    """
    enqueuer = getattr(adapter, "enqueuer", None)
    fetched = getattr(enqueuer, "ready_queue", None)
    if fetched is None or adapter.num_batches is None or getattr(enqueuer, "running", True):
        return 0
    dropped = 0
    with contextlib.suppress(queue.Empty):
        while True:
            fetched.get_nowait()
            dropped += 1
    return dropped


def stop_workers(adapter: Any) -> None:
    """Makes Keras' workers, if there are any, begin again with the next iterator over the dataset.

    They run until an iterator is asked for one batch more than there are. If it is not, the next one would wait for
    them forever. The adapter may be that of any data; its epoch must not have begun.
    """
    if has_workers(adapter):
        adapter.enqueuer.stop()


def leave_out(adapter: Any, batch: int) -> bool:
    """Makes the next iterator of a dataset of known length begin at a later batch of the epoch.

    Python's random state has to be that from which Keras would draw the order; it is left as Keras would leave it. With
    workers, the epoch of the adapter must not have begun; without, it must have. Returns whether this is possible; if
    not, nothing was changed.
    """
    enqueuer = getattr(adapter, "enqueuer", None)
    missing = [name for name in _NEEDS if not hasattr(adapter, name)]
    if enqueuer is not None:
        missing += [name for name in _NEEDS_OF_ENQUEUER if not hasattr(enqueuer, name)]
    if missing:
        return False
    order = list(range(adapter.num_batches))
    if adapter.shuffle:
        random.shuffle(order)
    rest = order[batch:]
    if enqueuer is None:
        vars(adapter)["_finite_generator"] = lambda: _drawn(adapter, rest)
    else:
        vars(enqueuer)["_run"] = lambda: _submit(enqueuer, rest)
        vars(adapter)["_finite_enqueuer_generator"] = lambda: _drawn_ahead(adapter, len(rest))
    return True


def _drawn(adapter: Any, indices: Sequence[int]) -> Iterator[Any]:
    vars(adapter).pop("_finite_generator", None)
    for index in indices:
        yield adapter._standardize_batch(adapter.py_dataset[index])


def _submit(enqueuer: Any, indices: Sequence[int]) -> None:
    """Runs in the thread that asks the enqueuer's workers for batches."""
    vars(enqueuer).pop("_run", None)
    type(enqueuer)._run(_Rest(enqueuer, indices))


def _drawn_ahead(adapter: Any, batches: int) -> Iterator[Any]:
    vars(adapter).pop("_finite_enqueuer_generator", None)
    if batches == 0:
        return
    adapter.enqueuer.start()
    for number, batch in enumerate(adapter.enqueuer.get(), 1):
        yield adapter._standardize_batch(batch)
        if number == batches:
            adapter.enqueuer.stop()
            return


class _Rest:
    """Stands in for an enqueuer, with the rest of an epoch in place of its dataset."""

    def __init__(self, enqueuer: Any, indices: Sequence[int]) -> None:
        self._enqueuer = enqueuer
        self.py_dataset = RestOfEpoch(enqueuer.py_dataset, indices)
        self.shuffle = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._enqueuer, name)

    def _send_py_dataset(self) -> None:
        type(self._enqueuer)._send_py_dataset(self)


class RestOfEpoch:
    """The batches that are left of an epoch, in its order. It can be pickled, for worker processes."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self._dataset = dataset
        self._indices = indices
        self.num_batches = len(indices)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[self._indices[index]]
