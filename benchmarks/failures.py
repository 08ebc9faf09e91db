"""Goodput of jobs that lose machines: by the formula of docs/cost.py, and in a simulation that draws the failures.

It measures nothing of this machine. Prints both for Llama 3's rate of failures on 16 to 16,384 machines, and for jobs
that fail so often that everything happens: machines lost in a restart, and two neighbours at once. The exit status is 1
if they differ by more than the simulation's own error, four times its standard error, and 1 % of the formula.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from figures import table

sys.path.insert(0, str(Path(__file__).parent.parent / "docs"))

import cost

ERROR = 0.01
SEEDS = 8

_ROUGH = {"interruptions": 12.0, "noticed": 0.0, "restart": 60.0, "memory_every": 20.0}
ROUGH = {
    "2 workers": cost.Job(workers=2, **_ROUGH),
    "8 workers": cost.Job(workers=8, **_ROUGH),
    "8, half with a notice": replace(cost.Job(workers=8, **_ROUGH), noticed=0.5),
    "64, slow storage": replace(cost.Job(workers=64, **_ROUGH), interruptions=4.0, bandwidth=0.02e9),
}


@dataclass
class _Job:
    """The state of a simulated job; positions are seconds of training."""

    job: Any
    draw: random.Random
    clock: float = 0.0
    done: float = 0.0
    committed: float = 0.0
    memory: float | None = None  # None: no save in memory that could be restored
    fallbacks: int = 0

    def __post_init__(self) -> None:
        self.lost: set[int] = set()  # Machines that were lost since the last save in memory.

    def life(self, interval: float) -> None:
        """Trains until a machine is lost."""
        job, ends = self.job, self.clock + self.draw.expovariate(self.job.rate)
        if not job.in_memory:
            save_at, copy_at = self.done + interval, math.inf
        else:  # `save_every` in steps: at its multiples, also after a restart.
            save_at = (self.done // interval + 1) * interval if math.isfinite(interval) else math.inf
            copy_at = self.done + job.memory_every
        written_at, writing = math.inf, 0.0
        while True:
            speed = 1.0 if math.isinf(written_at) else 1 - job.slowdown
            due = min(copy_at, save_at if math.isinf(written_at) else math.inf)
            at = min(self.clock + max(0.0, due - self.done) / speed, written_at)
            if at >= ends:
                self.done, self.clock = self.done + max(0.0, ends - self.clock) * speed, ends
                return
            self.done, self.clock = self.done + (at - self.clock) * speed, at
            if at == written_at:
                self.committed, written_at = writing, math.inf
                continue
            self.clock += job.copy
            if self.clock >= ends:
                self.clock = ends
                return
            if due == copy_at:
                self.memory, copy_at = self.done, self.done + job.memory_every
                self.lost.clear()
            else:
                writing, written_at, save_at = self.done, self.clock + job.write, self.done + interval

    def notice(self) -> None:
        """A checkpoint is committed; those in memory are older, and their machines change."""
        self.clock += self.job.write
        self.committed, self.memory = self.done, None
        self.lost.clear()

    def lose(self) -> None:
        """A machine is lost with its memory, which holds its own state and that of one neighbour."""
        workers = self.job.workers
        machine = self.draw.randrange(workers)
        if self.memory is not None and {(machine + 1) % workers, (machine - 1) % workers} & self.lost:
            self.memory = None
            self.fallbacks += 1
        self.lost.add(machine)

    def restart(self) -> None:
        """Machines may be lost in it as well: then it is begun again."""
        while True:
            away = self.job.away if self.memory is None else self.job.away_from_memory
            lost_in = self.draw.expovariate(self.job.rate)
            self.clock += min(away, lost_in)
            if lost_in >= away:
                break
            self.lose()
        self.done = self.committed if self.memory is None else self.memory


def simulate(job: Any, interval: float, interruptions: int, seed: int) -> tuple[float, float, float]:
    """Simulates a training job on machines that are taken away at random, from event to event.

    Failures of all machines together are a Poisson process, and each hits any of them.

    Args:
        job: A `Job` of docs/cost.py.
        interval: Seconds of training between two saves in the background; infinite for none.
        interruptions: How many interruptions of training are simulated.
        seed: Of the random numbers.

    Returns:
        The goodput, the mean seconds of training that were lost without a notice (0 if all came with one), and the
        share of these interruptions that saves in memory did not survive.
    """
    state = _Job(job, random.Random(seed))
    lost = []
    for _ in range(interruptions):
        state.life(interval)
        done, noticed = state.done, state.draw.random() < job.noticed
        if noticed:
            state.notice()
        else:
            state.lose()
        state.restart()
        if not noticed:
            lost.append(done - state.done)
    return state.done / state.clock, sum(lost) / max(len(lost), 1), state.fallbacks / max(len(lost), 1)


@dataclass(frozen=True)
class Simulated:
    """The means of several simulations, and their standard errors."""

    goodput: float
    goodput_error: float
    lost: float
    lost_error: float
    fallback: float
    fallback_error: float


def simulated(job: Any, interval: float, interruptions: int = 400) -> Simulated:
    found = [simulate(job, interval, interruptions, seed) for seed in range(SEEDS)]
    values = []
    for each in zip(*found, strict=True):
        values += [statistics.mean(each), statistics.stdev(each) / math.sqrt(len(each))]
    return Simulated(*values)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interruptions", type=int, default=1000, help="of each of 8 simulations")
    options = parser.parse_args(arguments)
    jobs = {f"Llama 3, {machines:,} machines": cost.scaled(machines) for machines in cost.MACHINES}
    rows, differs = [], []
    for name, job in (jobs | ROUGH).items():
        memory = replace(job, memory_every=job.memory_every or cost.best_memory_interval(job))
        for way, each in (("", replace(job, memory_every=0.0)), (", memory", memory)):
            interval = cost.best_interval(each)
            expected, found = cost.goodput(each, interval), simulated(each, interval, options.interruptions)
            if abs(expected - found.goodput) > 4 * found.goodput_error + ERROR * expected:
                differs.append(name + way)
            rows.append(
                [
                    name + way,
                    cost.duration(interval),
                    f"{expected:.2%}",
                    f"{found.goodput:.2%} ± {found.goodput_error:.2%}",
                    f"{expected / found.goodput:.3f}",
                    f"{cost.fallback(each):.4f}" if each.in_memory else "-",
                    f"{found.fallback:.4f} ± {found.fallback_error:.4f}" if each.in_memory else "-",
                ]
            )
    heads = ["job", "save_every", "formula", "simulation", "ratio", "falls back, formula", "simulation"]
    print(table(heads, rows))
    if differs:
        print(f"\nThe formula is off for: {', '.join(differs)}.")
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
