"""Counts what a fit asks of others while it trains: TensorFlow's coordination service, operations, storage.

Run as: count_calls.py OUTPUT DIRECTORY, in each worker. Fits a model four times, with few and with many steps,
with and without the PreemptionCallback, and writes OUTPUT.<worker>.json: what was counted between the second
and the last training boundary of each, by who asked. At the second one the callback tells once that the first
step is done.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
from collections import Counter
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_callbacks
from tensorflow.python.ops import collective_ops

from keras_preempt import PreemptionCallback, enable_multi_worker_fit
from keras_preempt.backend.tensorflow.coordination import ServiceCoordinator
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.report.events import EventLog
from keras_preempt.training.save.snapshots import SnapshotSchedule
from tests.fits import Doing

FEW, MANY = 20, 80

MAIN = threading.main_thread()


class Counts:
    """What happens between `open` and `close`."""

    def __init__(self) -> None:
        self._open = False
        self._lock = threading.Lock()
        self._found: Counter[str] = Counter()

    def open(self) -> None:
        with self._lock:
            self._found.clear()
            self._open = True

    def close(self) -> dict[str, int]:
        with self._lock:
            self._open = False
            return dict(self._found)

    def add(self, what: str) -> None:
        if self._open:
            who = "main" if threading.current_thread() is MAIN else "other"
            with self._lock:
                self._found[f"{who}: {what}"] += 1

    def methods(self, owner: type, kind: str) -> None:
        """Counts the calls of every public method of a class."""
        for name, function in list(vars(owner).items()):
            if not name.startswith("_") and callable(function):
                setattr(owner, name, self._counted(function, f"{kind} {owner.__name__}.{name}"))

    def _counted(self, function: Any, what: str) -> Any:
        @functools.wraps(function)
        def counted(*arguments: Any, **options: Any) -> Any:
            self.add(what)
            return function(*arguments, **options)

        return counted


class Window(Doing):
    """Counts from the second training boundary to the last; stands after the PreemptionCallback."""

    def __init__(self, counts: Counts, steps: int) -> None:
        super().__init__()
        self.counts = counts
        self.steps = steps
        self.found: dict[str, int] | None = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 1:
            self.counts.open()
        elif batch == self.steps - 1:
            self.found = self.counts.close()


def watch_operations(counts: Counts) -> None:
    """Counts what the main thread has TensorFlow execute, and the collectives of every thread.

    A strategy leaves its collectives to threads of its own. Operations that are added to a graph, while a
    step is compiled, do not count: only the execution of the graph does. Its name ends with a number that is
    different each time.
    """

    def callback(kind: Any, *arguments: Any, graph: Any = None, **options: Any) -> None:
        name = kind.decode() if isinstance(kind, bytes) else str(kind)
        if graph is None:
            counts.add(f"operation {name.rstrip('0123456789')}")

    op_callbacks.add_op_callback(callback)
    for name in ("all_reduce_v2", "all_gather_v2", "all_to_all_v2", "broadcast_send_v2", "broadcast_recv_v2"):
        original = getattr(collective_ops, name)

        def counted(*arguments: Any, _name: str = name, _original: Any = original, **options: Any) -> Any:
            if tf.executing_eagerly():
                counts.add(f"collective {_name}")
            return _original(*arguments, **options)

        setattr(collective_ops, name, counted)


def watch_files(counts: Counts, directory: str) -> None:
    """Counts every opening, listing and renaming of files in the run's directory, whoever does it."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" or event.startswith("os."):
            for argument in arguments:
                if isinstance(argument, (str, bytes)) and directory in os.fsdecode(argument):
                    counts.add(f"storage {event}")

    sys.addaudithook(hook)


def fit(strategy: Any, counts: Counts, steps: int, directory: str | None) -> dict[str, int]:
    keras.utils.set_random_seed(3)
    x = np.random.default_rng(5).normal(size=(64, 4)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).repeat().batch(8)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    window = Window(counts, steps)
    callbacks = [window] if directory is None else [PreemptionCallback(directory), window]
    model.fit(data, steps_per_epoch=steps, epochs=1, verbose=0, callbacks=callbacks)
    assert window.found is not None
    return window.found


def main(output: str, directory: str) -> None:
    # A snapshot of the input is work, which has a budget of its own. Whether one is due is looked at all the same.
    SnapshotSchedule.left = property(lambda schedule: 60.0)  # type: ignore[assignment]
    counts = Counts()
    counts.methods(ServiceCoordinator, "coordination")
    counts.methods(LocalStore, "storage")
    counts.methods(EventLog, "storage")
    watch_files(counts, directory)
    enable_multi_worker_fit()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    watch_operations(counts)
    found = {
        f"{name} {steps}": fit(strategy, counts, steps, None if name == "plain" else f"{directory}/{steps}")
        for name in ("plain", "ours")
        for steps in (FEW, MANY)
    }
    # The counters themselves work: what they are to find is there outside the window.
    counts.open()
    strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None)
    ServiceCoordinator(0, 2).put_if_absent(f"counted/{strategy.cluster_resolver.task_id}", "1")
    LocalStore(directory).children("")
    found["control"] = counts.close()
    task = strategy.cluster_resolver.task_id
    with open(f"{output}.{task}.json", "w") as stream:
        json.dump(found, stream, sort_keys=True, indent=1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
