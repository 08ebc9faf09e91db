"""The cost of preemptions on docs/cost.md: the formula is what a simulation gives, and JavaScript has the same one."""

from __future__ import annotations

import functools
import heapq
import itertools
import json
import math
import random
import shutil
import statistics
import subprocess
from dataclasses import asdict, dataclass
from typing import Any

import pytest

from tests.docs import browser
from tests.docs.pages import ROOT, program

cost = program("docs/cost.py")
Job = cost.Job

# Taken away every quarter of an hour or so, so that a short simulation has many interruptions.
ROUGH = {"interruptions": 12.0, "speed": 0.5, "restart": 60.0}
JOBS = {
    "some without a notice": Job(**ROUGH, noticed=0.7),
    "all with a notice": Job(**ROUGH, noticed=1.0),
    "none with a notice": Job(**ROUGH, noticed=0.0),
    "one shared disk": Job(**ROUGH, noticed=0.5, shared=True, state=2e9),
    "slow saves": Job(**ROUGH, noticed=0.2, slowdown=0.3, memory=0.5e9),
    "long saves and restarts": Job(**ROUGH, noticed=0.0, state=60e9, bandwidth=0.1e9),
    "one worker": Job(workers=1, interruptions=90.0, noticed=0.5, speed=0.5, restart=60.0),
}

jobs = pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)


def simulate(job: Any, interval: float, interruptions: int, seed: int) -> tuple[float, float]:
    """Simulates a training job step by step on machines that are taken away at random.

    Returns the goodput, and the mean seconds of training that were lost without a notice; 0 if all came with one.

    Goodput is the time that the steps that were kept take, over the time that went by.

    Every machine is taken away at moments of its own (exponential times between them), also while the job starts. With
    a notice the step is finished and a checkpoint written. Without one, training continues with the newest checkpoint
    that was complete by then.

    Args:
        job: A `Job` of docs/cost.py.
        interval: Seconds of training between two saves in the background; infinite for none.
        interruptions: How many interruptions of training are simulated.
        seed: Of the random numbers.
    """
    draw = random.Random(seed)
    machine_rate = job.rate / job.workers
    taken = [draw.expovariate(machine_rate) for _ in range(job.workers)]
    heapq.heapify(taken)

    def next_one() -> float:
        """Takes the next interruption out, and draws the one that follows on that machine."""
        at = heapq.heappop(taken)
        heapq.heappush(taken, at + draw.expovariate(machine_rate))
        return at

    clock, kept = 0.0, 0
    lost = []
    every = max(round(interval * job.speed), 1) if interval != float("inf") else None
    copy = job.state / (job.workers * job.memory)
    for _ in range(interruptions):
        done = kept
        complete: list[tuple[float, int]] = []  # When a checkpoint is complete, and its step.
        written_until = clock
        while True:
            slow = 1 - job.slowdown if clock < written_until else 1.0
            end = clock + 1 / (job.speed * slow)
            if end > taken[0]:
                break
            clock, done = end, done + 1
            if every and (done - kept) % every == 0 and clock >= written_until:
                clock += copy
                written_until = clock + job.write
                complete.append((written_until, done))
        at = max(next_one(), clock)
        if draw.random() < job.noticed:
            clock, kept = end + job.write, done + 1
            while taken[0] < clock:  # Nobody can be interrupted twice: the job leaves anyway.
                next_one()
        else:
            clock = at
            kept = max([kept, *(step for when, step in complete if when <= at)])
            lost.append((done - kept) / job.speed)
        ready = clock + job.away
        while taken[0] < ready:  # A machine is taken away while the job starts: it starts anew.
            ready = max(next_one(), clock) + job.away
        clock = ready
    return kept / job.speed / clock, sum(lost) / max(len(lost), 1)


@dataclass(frozen=True)
class Simulated:
    """The means of eight simulations, and their standard errors."""

    goodput: float
    goodput_error: float
    lost: float
    lost_error: float


@functools.cache
def simulated(job: Any, interval: float) -> Simulated:
    found = [simulate(job, interval, 400, seed) for seed in range(8)]
    values = []
    for each in zip(*found, strict=True):
        values += [statistics.mean(each), statistics.stdev(each) / math.sqrt(len(each))]
    return Simulated(*values)


@jobs
def test_goodput_and_the_training_that_is_lost_are_those_of_a_simulation(job: Any) -> None:
    best = cost.best_interval(job)
    for interval in {min(best, 3600.0), 900.0, math.inf}:
        found, what = simulated(job, interval), f"save_every={interval:.0f} s"
        expected = cost.goodput(job, interval)
        # Steps of two seconds are what the formula does not know.
        assert found.goodput == pytest.approx(expected, abs=4 * found.goodput_error + 0.005), what
        after_notice, after_kill = cost.kept(job, interval)
        if job.noticed < 1:
            lost = after_notice - after_kill
            assert found.lost == pytest.approx(lost, abs=4 * found.lost_error + 2), what


@pytest.mark.parametrize("name", [name for name, job in JOBS.items() if job.noticed < 1])
def test_the_best_save_every_is_the_best_of_the_formula_and_of_the_simulation(name: str) -> None:
    job = JOBS[name]
    best = cost.best_interval(job)
    others = [best * 1.1**power for power in range(-40, 41)]
    possible = [interval for interval in others if interval >= job.write]
    assert cost.goodput(job, best) >= max(cost.goodput(job, each) for each in possible) - 0.002
    mean = simulated(job, best).goodput
    for factor in (1 / 6, 6):
        if best * factor >= job.write:
            assert simulated(job, best * factor).goodput < mean


def test_at_small_rates_the_best_save_every_is_youngs() -> None:
    job = Job(interruptions=0.01, noticed=0.0)
    young = math.sqrt(2 * job.pause / job.rate)
    assert cost.best_interval(job) == pytest.approx(young, rel=0.02)


def test_without_interruptions_only_the_saves_cost() -> None:
    job = Job(interruptions=0.0)
    assert cost.best_interval(job) == math.inf
    assert cost.goodput(job, math.inf) == 1
    assert cost.goodput(job, 9 * job.pause) == pytest.approx(0.9)


# -- The calculator ----------------------------------------------------------------------------------------


VALUES = {
    "workers": (1, 64),
    "state": (1e8, 4e10),
    "shared": (False, True),
    "interruptions": (0.0, 0.5, 20.0),
    "noticed": (0.0, 0.9, 1.0),
    "slowdown": (0.0, 0.2),
}
GRID = [Job(**dict(zip(VALUES, values, strict=True))) for values in itertools.product(*VALUES.values())]
_SCRIPT = """
(() => { %s
  const number = (value) => (Number.isFinite(value) ? value : "infinite");
  return JSON.stringify(%s.map((job) => {
    const found = preemptionCost.costs(job);
    const all = [found.interval, found.goodput, found.without, found.write, found.away, found.pause, found.lost];
    return [...all.map(number), preemptionCost.duration(found.interval)];
  }));
})()
"""


def evaluated(expression: str) -> str:
    """The value of an expression of JavaScript, by Node or else by Chromium."""
    if node := shutil.which("node"):
        code = f"console.log({expression.strip()})"
        done = subprocess.run([node, "-"], input=code, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout
    if chromium := browser.find():
        with browser.Browser(chromium) as page:
            return str(page.run(expression))
    pytest.skip("runs JavaScript: install node or chromium")


def test_the_calculator_has_the_same_formula() -> None:
    asked = [
        {**asdict(job), **{name: getattr(job, name) / 1e9 for name in ("state", "bandwidth", "memory")}}
        for job in GRID
    ]
    found = json.loads(evaluated(_SCRIPT % ((ROOT / "docs" / "cost.js").read_text(), json.dumps(asked))))
    assert len(found) == len(GRID)
    for job, (interval, goodput, without, *others, duration) in zip(GRID, found, strict=True):
        best = cost.best_interval(job)
        assert float(str(interval).replace("infinite", "inf")) == pytest.approx(best, rel=1e-9), job
        assert goodput == pytest.approx(cost.goodput(job, best), rel=1e-9, abs=1e-12), job
        assert without == pytest.approx(cost.goodput(job, math.inf), rel=1e-9, abs=1e-12), job
        after_notice, after_kill = cost.kept(job, best) if job.rate * (1 - job.noticed) else (0, 0)
        lost = after_notice - after_kill
        assert others == pytest.approx([job.write, job.away, job.pause, lost], rel=1e-6), job
        assert duration == cost.duration(best), job
