"""The program that runs one way: ``run.py MODULE NAME STRATEGY PLACE [--count] FOLDER...``.

It finds the way in the catalogue, calls its job in each folder, and writes the results of the job to
``FOLDER/output.<worker>.npz`` and ``.json``, which are compared bit by bit. Only the last run is struck. A run in a
folder whose name begins with "plain" is one without the PreemptionCallback.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import json
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

from tests.ways.late import tf
from tests.ways.way import MIRRORED, NEXT_RUN, PLAIN, STRIKE, WORKERS, Way

ON_TORCH = os.environ.get("KERAS_BACKEND") == "torch"

WORKER = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)

STARTED_BEFORE = "KERAS_PREEMPT_LAUNCHER_INCARNATION"
"""Where the launcher says how often; the package is not imported before the run."""


ASKED = ("__len__", "metrics", "get_state", "state_dict", "__getattr__")
"""What is asked more often than by Keras: how long data is, which metrics there are, what a checkpoint is to hold,
where a stream is; and modules that jobs import late."""


class Run:
    """What a job is given: the strategy, a folder, and ways to fit and to keep.

    Attributes:
        strategy: The name of the strategy, one of `tests.ways.way.STRATEGIES`.
        work: A folder of this run, the same for every start of it and for every worker.
        worker: The number of this worker.
        first: Whether this is the first start of the run.
        plain: Whether it is one without our callback.
        options: Given to the PreemptionCallback besides its directory; a job may change them before it fits.
    """

    def __init__(self, folder: str, strategy: str, place: str, plain: bool, strike: str | None) -> None:
        self.strategy = strategy
        self.work = Path(folder, "work")
        self.work.mkdir(exist_ok=True)
        self.worker = WORKER
        self.options: dict[str, Any] = {}
        self.directory = f"{folder}/run"
        self.first = not Path(self.directory).exists()
        self._output = f"{folder}/output"
        self._place = place
        self._strike = strike
        self.plain = plain
        self._strategy = self._make_strategy()
        self._arrays: dict[str, np.ndarray] = {}
        self._record: dict[str, Any] = {}
        self._recorder: Any = None

    def _make_strategy(self) -> tf.distribute.Strategy | None:
        if self.strategy == WORKERS:
            return tf.distribute.MultiWorkerMirroredStrategy()
        if self.strategy == MIRRORED:
            cpu = tf.config.list_physical_devices("CPU")[0]
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
            return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        return None

    @property
    def tf_strategy(self) -> tf.distribute.Strategy:
        """The strategy itself; the default one on one device."""
        return self._strategy or tf.distribute.get_strategy()

    def scope(self) -> contextlib.AbstractContextManager[object]:
        """Where the model is made and compiled."""
        return self._strategy.scope() if self._strategy else contextlib.nullcontext()

    def recorder(self) -> Any:
        """The callback that records each step and strikes; one for the whole process."""
        if self._recorder is None:
            from tests.ways.recorder import Recorder

            self._recorder = Recorder(self._strike)
        return self._recorder

    def preemption(self, directory: str | None = None) -> list[Any]:
        """The PreemptionCallback, in a list; an empty list in a plain run."""
        import keras

        import keras_preempt

        if self.plain:
            if keras.backend.backend() == "tensorflow":
                keras_preempt.enable_multi_worker_fit()
            return []
        return [keras_preempt.PreemptionCallback(directory or self.directory, **self.options)]

    def callbacks(self, own: Sequence[Any] = (), directory: str | None = None) -> list[Any]:
        """The job's own callbacks with the recorder and ours among them, at the place that the test asks for."""
        listed = [self.recorder(), *own]
        at = {"first": 0, "middle": (len(listed) + 1) // 2, "last": len(listed)}[self._place]
        return [*listed[:at], *self.preemption(directory), *listed[at:]]

    def fit(self, model: Any, *data: Any, callbacks: Sequence[Any] = (), **arguments: Any) -> Any:
        """Calls ``model.fit`` with our callbacks, and keeps the History and all that the model ended with."""
        arguments = {"verbose": 0, "epochs": 3, **arguments}
        history = model.fit(*data, callbacks=self.callbacks(callbacks), **arguments)
        self.keep_model(model)
        fits = self._record.setdefault("fits", [])
        fits.append({"history": history.history, "epochs": history.epoch})
        return history

    def keep_model(self, model: Any, name: str = "") -> None:
        """Keeps every variable of a model, its optimizer and its metrics, of each replica."""
        optimizer = getattr(model, "optimizer", None)
        groups = [model.variables, optimizer.variables if optimizer else [], model.metrics_variables]
        for group in groups:
            for number, variable in enumerate(group):
                local = (lambda value: [value]) if ON_TORCH else self.tf_strategy.experimental_local_results
                parts = local(variable.numpy() if ON_TORCH else variable.value)
                for replica, value in enumerate(parts):
                    self._arrays[f"{name}{variable.path}.{number}@{replica}"] = np.asarray(value)

    def keep_optimizers(self, *optimizers: Any) -> None:
        """Keeps every variable of optimizers that the model does not show."""
        for each in optimizers:
            self.keep(**{f"{each.name} {n}": variable.numpy() for n, variable in enumerate(each.variables)})

    def keep(self, **values: Any) -> None:
        """Keeps anything else: arrays, or plain data."""
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                self._arrays[name] = value
            else:
                self._record[name] = value

    def keep_attributes(self, callback: Any, names: Sequence[str]) -> None:
        """Keeps attributes of a callback."""
        for name in names:
            value = getattr(callback, name)
            kept = float(value) if isinstance(value, np.floating) else value
            self.keep(**{f"{type(callback).__name__}.{name}": kept})

    def end(self) -> None:
        """Writes what was kept, and the random state that training ended with."""
        import keras

        self._arrays["python, numpy"] = np.array([random.random(), np.random.rand()])
        self._arrays["keras"] = np.asarray(keras.random.uniform((4,)))
        if ON_TORCH:
            import torch

            self._arrays["torch"] = torch.rand(4).numpy()
        np.savez(f"{self._output}.{WORKER}.npz", **self._arrays)
        with open(f"{self._output}.{WORKER}.json", "w") as stream:
            json.dump(self._record, stream, sort_keys=True, default=_plain)
        print("FINISHED", flush=True)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"cannot keep {value!r}")


def find(module: str, name: str) -> Way:
    """Returns the way of that name; jobs that are drawn at random are made when they are asked for."""
    found = importlib.import_module(module)
    if name.startswith("seed-"):
        return found.way(int(name.removeprefix("seed-")))
    return next(way for way in found.WAYS if way.name == name)


def strike_of(start: int) -> str | None:
    """Returns where a start gets its signal; None if it gets none."""
    strikes = os.environ.get(STRIKE, "").split(";")
    return strikes[start] if start < len(strikes) else None


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("module", "name", "strategy", "place"):
        parser.add_argument(name)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--count", action="store_true", help="count the calls of each function of the job")
    args = parser.parse_args()
    drawn = _count_draws()
    for number, folder in enumerate(args.folders, 1):
        strike = strike_of(int(os.environ.get(STARTED_BEFORE, 0))) if number == len(args.folders) else None
        if number > 1:
            _begin_anew()
            drawn.clear()
            print(NEXT_RUN, flush=True)
        os.chdir(folder)
        run = Run(folder, args.strategy, args.place, Path(folder).name.startswith(PLAIN), strike)
        import keras

        from keras_preempt.training.save.snapshots import SnapshotSchedule

        # The few steps of a way would be over before a snapshot of the input is due by the clock.
        SnapshotSchedule.left = property(lambda schedule: 0.0)  # type: ignore[assignment]
        SnapshotSchedule.boundaries_left = lambda schedule, entered: 1  # type: ignore[method-assign]
        keras.utils.set_random_seed(11)
        way = find(args.module, args.name)
        with counted_calls() if args.count else contextlib.nullcontext(Counter()) as called:
            way.job(run)
        run.end()
        for name, number in sorted(called.items()):
            print(f"CALLED {name} {number}", flush=True)
        print(f"DRAWN {sum(drawn.values())} outside of steps", flush=True)


@contextlib.contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Counts the calls of what the jobs define, in all threads: the user's code."""
    called: Counter[str] = Counter()
    jobs, here = str(Path(__file__).parent), str(Path(__file__))

    def count(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        # No body of a class, which is run once, and no generator, which TensorFlow goes on with ahead of training.
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_flags & inspect.CO_GENERATOR
        if (
            event == "call"
            and is_function
            and code.co_filename.startswith(jobs)
            and code.co_filename != here
            and code.co_name not in ASKED
        ):
            called[f"{code.co_name} in line {code.co_firstlineno} of {Path(code.co_filename).name}"] += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        yield called
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def _begin_anew() -> None:
    """As in another process, as far as a job can tell."""
    import keras

    from tests import fits

    keras.utils.clear_session()
    keras.config.set_dtype_policy("float32")
    fits.forget()


def _count_draws() -> Counter[str]:
    """Counts the batches that are drawn in Python; those of training are drawn in its graph."""
    if ON_TORCH:
        return Counter()
    # Making an iterator to ask for its class would initialize TensorFlow's devices.
    from tensorflow.python.data.ops import iterator_ops
    from tensorflow.python.distribute import input_lib

    drawn: Counter[str] = Counter()
    for kind in (iterator_ops.OwnedIterator, input_lib.DistributedIterator):
        owner = next(each for each in kind.__mro__ if "__next__" in vars(each))

        def counted(iterator: Any, original: Any = owner.__next__, name: str = owner.__name__) -> Any:
            drawn[name] += 1
            return original(iterator)

        owner.__next__ = counted  # type: ignore[attr-defined]
    return drawn


if __name__ == "__main__":
    main()
