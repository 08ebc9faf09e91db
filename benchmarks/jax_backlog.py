"""What it costs on JAX that the host queues only a window of steps, and what that is good for.

JAX returns from a step before it is computed, and Keras goes on to the next one. This package lets the host queue a
few steps and no more (`keras_preempt.backend.jax.backlog`). Trains the same model, in turns, with plain Keras, with
`PreemptionCallback`, and with `PreemptionCallback` without the window; once with steps that take no longer than it
takes to queue one, and once with longer ones. Then preempts fits with steps of 50 ms, with the window and without
it, and reads from their events how long after the notice the checkpoint was committed.

The steps compute on the CPU what nobody needs, for as long as asked for. All of it runs in one process. The exit
status is 1 if an aim is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import keras
import numpy as np
from figures import ON_JAX, Aims, conditions, table, tell

from keras_preempt import Preempted, PreemptionCallback, TerminationConfig
from keras_preempt.backend.jax import backlog

PLAIN, WINDOW, UNBOUNDED = "plain Keras", "with the window", "without it"
CONTESTANTS = (PLAIN, WINDOW, UNBOUNDED)

SLOWER = 1.05
"""The most that training with the callback may take, over training without it, with steps that are no trifle."""

KINDS = (
    ("small steps", 0.0, 0.0, 1),
    ("steps of 5 ms", 0.005, 0.0, 10),
    ("steps of 10 ms, and as much on the host", 0.01, 0.01, 20),
)
"""Of each kind of step: its title, the seconds that it computes, those of work on the host before it, and of how many
small steps there is one of them."""

_NO_WINDOW = 1 << 30
_FEATURES = 32
_PREEMPTED = 60
"""The step of the notice: JAX alone queues 32 computations on a CPU."""


class BusyLoss(keras.Sequential):  # type: ignore[misc]
    """A model whose loss computes a chain of that many links, which nobody needs."""

    def __init__(self, links: int) -> None:
        super().__init__([keras.Input((_FEATURES,)), keras.layers.Dense(_FEATURES), keras.layers.Dense(1)])
        self._links = links
        self.compile("adam", "mse")

    def compute_loss(self, x: Any = None, *arguments: Any, **named: Any) -> Any:
        """Computes the chain, and what Keras computes."""
        begin = jax.lax.stop_gradient(x[0])
        return super().compute_loss(x, *arguments, **named) + 0.0 * chain(begin, self._links)


def chain(begin: Any, links: int) -> Any:
    """Returns a number for which that many steps have to be computed one after the other."""
    return jax.lax.fori_loop(0, links, lambda _, value: jax.numpy.sin(value), begin).sum()


def links_for(seconds: float) -> int:
    """Returns how many links take about that long on this machine."""
    count = 2000
    compute = jax.jit(chain, static_argnums=1)
    begin = jax.numpy.zeros((_FEATURES,))
    compute(begin, count).block_until_ready()
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        compute(begin, count).block_until_ready()
        taken.append(time.perf_counter() - began)
    return max(0, round(seconds / min(taken) * count))


class Clock(keras.callbacks.Callback):  # type: ignore[misc]
    """Measures an epoch, without its first steps and the last one's wait for the device.

    Attributes:
        seconds: What the epoch took.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """The callbacks before this one have begun the epoch."""
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        """Keras has read the logs of the last step, which is computed therefore."""
        self.seconds = time.perf_counter() - self._began

    def get_state(self) -> dict[str, object]:
        """Nothing to keep; without this the PreemptionCallback warns that nothing is kept."""
        return {}

    def set_state(self, state: dict[str, object]) -> None:
        """See `get_state`."""


class HostWork(keras.callbacks.Callback):  # type: ignore[misc]
    """Stands for what a program does on the host before each step, while the device computes the step before.

    Args:
        seconds: How long it takes.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        """Sleeps, so that it takes nothing from the device, which is a CPU here."""
        if self._seconds:
            time.sleep(self._seconds)

    def get_state(self) -> dict[str, object]:
        """Nothing to keep."""
        return {}

    def set_state(self, state: dict[str, object]) -> None:
        """Nothing was kept."""


class Notice(keras.callbacks.Callback):  # type: ignore[misc]
    """Sends this process SIGTERM."""

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        """Another step begins."""
        if batch == _PREEMPTED:
            os.kill(os.getpid(), signal.SIGTERM)

    def get_state(self) -> dict[str, object]:
        """Nothing to keep."""
        return {}

    def set_state(self, state: dict[str, object]) -> None:
        """Nothing was kept."""


@contextlib.contextmanager
def window(contestant: str) -> Iterator[None]:
    """Sets how many steps may be queued, as long as the block lasts."""
    original = backlog.WINDOW
    backlog.WINDOW = _NO_WINDOW if contestant == UNBOUNDED else original
    try:
        yield
    finally:
        backlog.WINDOW = original


def data(steps: int) -> dict[str, Any]:
    """Returns the input of an epoch of so many steps, in the arguments of fit."""
    x = np.zeros((4 * steps, _FEATURES), "float32")
    return {"x": x, "y": x[:, :1], "batch_size": 4, "shuffle": False, "verbose": 0}


def trained(model: Any, steps: int, host: float, contestant: str) -> float:
    """Trains an epoch with that many seconds of work on the host before each step; returns the seconds of a step."""
    clock = Clock()
    with window(contestant), tempfile.TemporaryDirectory() as folder:
        ours = [] if contestant == PLAIN else [PreemptionCallback(folder)]
        model.fit(**data(steps), callbacks=[*ours, clock, HostWork(host)])
    return clock.seconds / steps


def preempted(model: Any, contestant: str) -> float:
    """Preempts a fit; returns the seconds from the notice to the commit.

    Raises:
        RuntimeError: It was not preempted.
    """
    with window(contestant), tempfile.TemporaryDirectory() as folder:
        ours = PreemptionCallback(folder, termination=TerminationConfig(exit_fn=lambda: None))
        try:
            model.fit(**data(2 * _PREEMPTED), callbacks=[ours, Notice()])
        except Preempted:
            lines = Path(folder, "events").glob("*.jsonl")
            events = {event["event"]: event for path in lines for event in map(json.loads, path.open())}
            return float(events["commit"]["time"] - events["notice"]["received_at"])
    raise RuntimeError("Expected the fit to be preempted. Received: one that came to its end.")


def turns(contestants: Sequence[str], repetitions: int, measure: Any) -> dict[str, list[float]]:
    """Has each take its turn, the first time to warm up."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(repetitions + 1):
        start = number % len(contestants)
        for name in (*contestants[start:], *contestants[:start]):
            seconds = measure(name)
            if number:
                found[name].append(seconds)
    return found


def report(
    steps: dict[str, dict[str, list[float]]], waits: dict[str, list[float]], step: float, aims: Aims
) -> str:
    """Returns both tables, and judges the cost of the window and the wait that it bounds."""
    rows = []
    for title, found in steps.items():
        median = {name: statistics.median(values) for name, values in found.items()}
        for name, seconds in median.items():
            rows.append(
                [
                    f"{title}: {name}",
                    f"{seconds * 1e6:.0f}",
                    f"{median[PLAIN] / seconds:.2f}",
                    f"{median[UNBOUNDED] / seconds:.2f}",
                ]
            )
        if title != KINDS[0][0]:
            longer = median[WINDOW] / median[PLAIN]
            aims.check(f"{title}, {WINDOW} / {PLAIN}", longer, "at most", SLOWER)
        tell(f"training with the window, {title}", PLAIN, median[PLAIN] / median[WINDOW], better="more")
        tell(
            f"training with the window, {title}", UNBOUNDED, median[UNBOUNDED] / median[WINDOW], better="more"
        )
    wait = {name: statistics.median(values) for name, values in waits.items()}
    tell("notice -> committed with the window", UNBOUNDED, wait[WINDOW] / wait[UNBOUNDED], better="less")
    bound = (backlog.WINDOW + 2) * step
    aims.check("notice -> committed with the window", wait[WINDOW], "at most", bound + 0.2, " s")
    waited = [
        [name, f"{seconds * 1000:.0f}", f"{max(waits[name]) * 1000:.0f}", f"{seconds / step:.1f}"]
        for name, seconds in wait.items()
    ]
    header = ["a step", "us", "speed / plain Keras", "speed / without the window"]
    ms = f"notice -> committed, steps of {step * 1000:.0f} ms"
    return "\n\n".join([table(header, rows), table([ms, "ms", "longest", "in steps"], waited)])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=7, help="of each, after one that warms up")
    parser.add_argument("--steps", type=int, default=2000, help="of an epoch of small steps")
    parser.add_argument("--quick", action="store_true", help="too little for the figures to mean anything")
    options = parser.parse_args(arguments)
    if options.repetitions < 1 or options.steps < 10:
        parser.error("Expected at least 1 repetition of 10 steps.")
    repetitions, count = (1, 50) if options.quick else (options.repetitions, options.steps)
    logging.getLogger("keras_preempt").setLevel(logging.ERROR)
    print(conditions(*ON_JAX), flush=True)
    began = time.monotonic()
    steps = {}
    for title, seconds, host, share in KINDS:
        model, length = BusyLoss(links_for(seconds)), max(10, count // share)

        def epoch(name: str, model: Any = model, length: int = length, host: float = host) -> float:
            return trained(model, length, host, name)

        steps[title] = turns(CONTESTANTS, repetitions, epoch)
    step = 0.01 if options.quick else 0.05
    model = BusyLoss(links_for(step))
    waits = turns((WINDOW, UNBOUNDED), min(repetitions, 3), lambda name: preempted(model, name))
    aims = Aims(apply=not options.quick)
    text = report(steps, waits, step, aims)
    print(f"{repetitions} repetitions, medians, {time.monotonic() - began:.0f} s in all\n\n{text}")
    return aims.report()


if __name__ == "__main__":
    sys.exit(main())
