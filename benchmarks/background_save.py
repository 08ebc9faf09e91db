"""How long a save in the background stops training, compared with one copy of the state in host memory.

Training waits only for the copy that the save is written from. Prints the median of that time and
of `numpy.copy` of the same variables, taken in turn; how many training steps ran while the save was written, and how
long they took then and at other times; and the most memory that a save took beyond the model's own.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf
from checkpointers import PLAN
from figures import Aims, conditions, table, tell
from state import bytes_of, model_of, peak_of, touch

from keras_preempt.agreement.messages import Position
from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.report.events import EventLog
from keras_preempt.state.component import Content
from keras_preempt.state.model import ModelState
from keras_preempt.training.save.saver import Saver
from keras_preempt.training.save.saves import BackgroundSave
from keras_preempt.training.save.tidier import Tidier

_POSITION = Position(0, "train", 0, 0)
_BATCH = np.zeros((1, 4), np.int32), np.zeros((1, 1), np.float32)


@dataclass
class Found:
    """Seconds of each repetition except the first.

    Attributes:
        copies: One copy of the variables.
        blocked: From the decision to save until training continues.
        written: From then until the checkpoint is committed.
        busy_steps: Each training step in that time.
        idle_steps: Each of as many training steps without a save.
        peak: Bytes that the process grew by at the most, from decision to commit, in a save without training.
    """

    copies: list[float] = field(default_factory=list)
    blocked: list[float] = field(default_factory=list)
    written: list[float] = field(default_factory=list)
    busy_steps: list[list[float]] = field(default_factory=list)
    idle_steps: list[float] = field(default_factory=list)
    peak: int = 0


class Training:
    """A model that trains while it is saved in the background."""

    def __init__(self, size: int, directory: Path) -> None:
        self.model = model_of(size)
        self.size = bytes_of(self.model)
        self._variables = [variable.value for variable in self.model.variables]
        self._store = LocalStore(directory)
        self._store.prepare()
        self._incarnation = incarnations.claim(self._store, {})
        state = ModelState(self.model, tf.distribute.get_strategy())
        store = self._store
        tidier = Tidier(store, Retention(1), self._incarnation)
        self._saver = Saver(store, state, self._incarnation, tidier, EventLog(0))
        self.background = BackgroundSave()

    def step(self) -> None:
        """Trains one batch."""
        self.model.train_on_batch(*_BATCH)

    def copy(self) -> list[np.ndarray]:
        """Copies all variables, one after the other."""
        return [np.copy(np.asarray(variable.read_value_no_copy())) for variable in self._variables]

    def save(self) -> None:
        """Returns when training may go on."""
        content = Content({})
        prepared = self._saver.prepare(PLAN, _POSITION, content, copy=True, began_at=time.time())
        self.background.start(_POSITION, partial(self._saver.write, prepared))

    def train_while_saving(self) -> list[float]:
        """Trains until the save is committed; returns the seconds of each step."""
        steps = []
        while self.background.busy:
            steps.append(seconds_of(self.step))
        saved = self.background.wait()
        if saved is None or saved.name is None:
            raise RuntimeError(
                "Expected the save in the background to be committed. Received: none; see the log."
            )
        return steps


def measure(training: Training, repetitions: int) -> Found:
    found = Found()
    training.step()

    def alone() -> None:  # without what training itself takes beside the model, such as gradients
        training.save()
        training.background.wait()

    found.peak = peak_of(alone)
    for number in range(repetitions):
        for what in ("copy", "save") if number % 2 else ("save", "copy"):
            touch(min(2 * training.size, training.size + (1 << 30)))
            if what == "copy":
                found.copies.append(seconds_of(training.copy))
                continue
            found.blocked.append(seconds_of(training.save))
            began = time.perf_counter()
            found.busy_steps.append(training.train_while_saving())
            found.written.append(time.perf_counter() - began)
        found.idle_steps += [seconds_of(training.step) for _ in range(5)]
    return found


def seconds_of(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - began
    del result  # giving a copy back takes time too, which is not the copy's
    return seconds


def report(found: Found, size: int, aims: Aims) -> str:
    copied, blocked = statistics.median(found.copies), statistics.median(found.blocked)
    written = statistics.median(found.written)
    steps = [len(steps) for steps in found.busy_steps]
    tell("training held up by a save", "one copy of the state in memory", blocked / copied, better="less")
    aims.check("training held up, x one copy", blocked / copied, "below", 2)
    aims.check("peak memory of a save, x state", found.peak / size, "below", 1.4)
    busy = [seconds for steps in found.busy_steps for seconds in steps]
    rows = [
        ["one copy of the state in memory", _milliseconds(copied), _rate(size, copied), "1.00"],
        [
            "training held up by a save",
            _milliseconds(blocked),
            _rate(size, blocked),
            f"{blocked / copied:.2f}",
        ],
        ["then until the commit", _milliseconds(written), _rate(size, written), f"{written / copied:.2f}"],
    ]
    if busy:
        rows.append(["a step meanwhile", _milliseconds(statistics.median(busy)), "", ""])
    rows.append(["a step without a save", _milliseconds(statistics.median(found.idle_steps)), "", ""])
    return (
        f"{table(['', 'ms', 'MB/s', 'x one copy'], rows)}\n\n"
        f"Training steps during each save: {', '.join(map(str, steps))}. "
        f"Peak memory beyond the model's: {found.peak / size:.2f} x the state."
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"


def _rate(size: int, seconds: float) -> str:
    return f"{size / seconds / 1e6:.0f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gb", type=float, default=0.5, help="size of the state in GB (10^9 bytes)")
    parser.add_argument("--repetitions", type=int, default=7, help="after one that warms up")
    parser.add_argument("--directory", type=Path, help="where to write; a temporary directory by default")
    parser.add_argument("--no-aims", action="store_true", help="for states too small to mean anything")
    options = parser.parse_args(arguments)
    if options.gb <= 0 or options.repetitions < 1:
        parser.error("Expected a state larger than 0 and at least 1 repetition.")
    logging.getLogger("keras_preempt").setLevel(logging.WARNING)
    print(conditions(), flush=True)
    with tempfile.TemporaryDirectory(dir=options.directory) as temporary:
        training = Training(round(options.gb * 1e9), Path(temporary))
        found = measure(training, options.repetitions)
    print(f"{training.size / 1e6:.0f} MB of state, {options.repetitions} repetitions, medians\n")
    aims = Aims(apply=not options.no_aims)
    print(report(found, training.size, aims))
    return aims.report()


if __name__ == "__main__":
    sys.exit(main())
