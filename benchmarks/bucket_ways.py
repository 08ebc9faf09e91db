"""The package's own way to save a state to a bucket and to restore it, and what all ways have in common."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from bucket_services import store_of

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.attempt import Attempt
from keras_preempt.checkpoint.commit import Patience, commit
from keras_preempt.checkpoint.division import divide
from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.layout import attempt_directory, attempt_name
from keras_preempt.checkpoint.reader import load
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.values import Value
from keras_preempt.checkpoint.writer import WorkerShare, write_part

POSITION = {"epoch": 0, "phase": "train", "batch": 1}


def state(size: int) -> dict[str, Array]:
    """Weights and two slots of dense layers, `size` bytes in all: the same in every process."""
    random = np.random.default_rng(1)
    layers = 8
    width = int((size / 4 / 3 / layers) ** 0.5)
    return {
        f"layer-{layer}/{kind}": random.random((width, width), dtype=np.float32)
        for layer in range(layers)
        for kind in ("kernel", "momentum", "velocity")
    }


class Way(Protocol):
    """A way to save a state and to restore it."""

    name: str

    def save(self) -> float:
        """Returns how many seconds it takes."""
        ...

    def restore(self) -> float:
        """Returns how many seconds it takes."""
        ...

    def forget(self) -> None:
        """Removes what was saved."""
        ...


def save_checkpoint(store: Store, tensors: dict[str, Array], step: int = 1) -> None:
    """Writes and commits a checkpoint of one worker, as a save of the package does."""
    directory = attempt_directory(step, attempt_name(1, step))
    write_part(store, directory, 0, share_of(tensors, 0, 1))
    commit_checkpoint(store, tensors, 1, step)


def values_of(tensors: dict[str, Array]) -> list[Value]:
    return [Value(name, array.dtype.name, array.shape) for name, array in tensors.items()]


def share_of(tensors: dict[str, Array], worker: int, workers: int) -> WorkerShare:
    """Returns what one of some workers writes of tensors that all of them hold."""
    boxes = divide(values_of(tensors), range(workers))[worker]
    return WorkerShare([(box, box.of(tensors[box.tensor])) for box in boxes], {}, {}, POSITION)


def commit_checkpoint(store: Store, tensors: dict[str, Array], workers: int, step: int = 1) -> None:
    """Commits the parts of some workers, as the first start of a run, which must have been claimed."""
    attempt = Attempt(
        step=step,
        name=attempt_name(1, step),
        position=POSITION,
        kind="periodic",
        members=workers,
        writers=tuple(range(workers)),
        values=values_of(tensors),
    )
    commit(store, attempt, Patience(600.0))


class Ours:
    """The package's store, writer and reader, with a number of connections."""

    def __init__(self, scheme: str, tensors: dict[str, Array], connections: int) -> None:
        self.name = f"keras_preempt, {connections} connection{'s' if connections > 1 else ''}"
        self.connections = connections
        self._tensors = tensors
        self._store = store_of(scheme, f"ours-{connections}", connections)
        incarnations.claim(self._store, {})

    def save(self) -> float:
        """See `Way.save`."""
        return seconds(lambda: save_checkpoint(self._store, self._tensors))

    def restore(self) -> float:
        """See `Way.restore`."""
        begun = time.perf_counter()
        loaded = load(self._store, committed(self._store)[0], 0, 1)
        took = time.perf_counter() - begun
        for name, array in self._tensors.items():
            if not np.array_equal(loaded.values.whole[name], array):
                raise RuntimeError(f"Expected {name!r} as it was saved. Received: something else.")
        return took

    def forget(self) -> None:
        """See `Way.forget`."""
        self._store.delete_tree("step-00000001")
        self._store.close()


def seconds(call: Callable[[], Any]) -> float:
    """Returns how long a call takes."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun
