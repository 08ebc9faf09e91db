"""The cost of preemptions on docs/cost.md: the formula is what a simulation gives, and JavaScript has the same one."""

from __future__ import annotations

import functools
import itertools
import json
import math
import shutil
import subprocess
import sys
from dataclasses import asdict, fields, replace
from typing import Any

import pytest

from tests.benchmarked import BENCHMARKS
from tests.docs import browser
from tests.docs.pages import ROOT

import failures  # isort: skip

cost = failures.cost
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


simulated = functools.cache(failures.simulated)


@jobs
def test_goodput_and_the_training_that_is_lost_are_those_of_a_simulation(job: Any) -> None:
    best = cost.best_interval(job)
    for interval in {min(best, 3600.0), 900.0, math.inf}:
        found, what = simulated(job, interval), f"save_every={interval:.0f} s"
        expected = cost.goodput(job, interval)
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


MEMORY = {
    **failures.ROUGH,
    "8 workers, no save_every, some notices": replace(failures.ROUGH["8 workers"], noticed=0.2),
    "2,048 machines of Llama 3": replace(cost.LLAMA_3, memory_every=120.0),
}


@pytest.mark.parametrize("name", MEMORY)
def test_goodput_with_memory_checkpoints_is_that_of_a_simulation_in_which_neighbours_are_lost(
    name: str,
) -> None:
    job = MEMORY[name]
    best = math.inf if "no save_every" in name else cost.best_interval(job)
    found, expected = simulated(job, best, 300), cost.goodput(job, best)
    assert found.goodput == pytest.approx(expected, abs=4 * found.goodput_error + failures.ERROR * expected)
    share = cost.fallback(job)
    assert found.fallback == pytest.approx(share, abs=4 * found.fallback_error + 0.2 * share + 1e-3)
    after_notice, after_kill = cost.kept(job, best)
    if math.isfinite(best):
        assert found.lost == pytest.approx(after_notice - after_kill, abs=4 * found.lost_error + 2)


def test_where_nobody_is_left_to_keep_a_copy_memory_checkpoints_change_nothing() -> None:
    job = Job(workers=1, interruptions=10.0, noticed=0.3)
    assert cost.goodput(replace(job, memory_every=30.0), 600.0) == cost.goodput(job, 600.0)
    assert cost.fallback(replace(job, memory_every=30.0)) == 1


def test_the_best_time_between_memory_checkpoints_is_the_best_of_the_formula() -> None:
    for machines in cost.MACHINES:
        job = cost.scaled(machines)
        best = cost.best_memory_interval(job)

        def goodput(factor: float, job: Any = job, best: float = best) -> float:
            each = replace(job, memory_every=factor * best)
            return float(cost.goodput(each, cost.best_interval(each)))

        assert goodput(1) >= max(map(goodput, (0.5, 0.8, 1.25, 2))) - 1e-3
        # On 16 machines that storage is as good as memory.
        assert goodput(1) > cost.goodput(job, cost.best_interval(job)) - 1e-4


def test_llama_3_is_interrupted_419_times_in_54_days_on_16384_gpus() -> None:
    assert cost.LLAMA_3.rate * 54 * 86400 == pytest.approx(419)
    assert cost.LLAMA_3.workers * 8 == 16_384


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
    "together": (False, True),
    "memory_every": (0.0, 15.0),
}
GRID = [Job(**dict(zip(VALUES, values, strict=True))) for values in itertools.product(*VALUES.values())]
_SCRIPT = """
(() => { %s
  const number = (value) => (Number.isFinite(value) ? value : "infinite");
  return JSON.stringify(%s.map((job) => {
    const found = preemptionCost.costs(job);
    const all = [found.interval, found.goodput, found.without, found.write, found.away, found.pause, found.lost];
    all.push(found.memoryInterval, found.fallback ?? 1);
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


def as_on_the_page(job: Any) -> dict[str, Any]:
    """The values of a job in gigabytes."""
    return {**asdict(job), **{name: getattr(job, name) / 1e9 for name in ("state", "bandwidth", "memory")}}


def test_the_calculator_has_the_same_formula() -> None:
    asked = [as_on_the_page(job) for job in GRID]
    found = json.loads(evaluated(_SCRIPT % ((ROOT / "docs" / "cost.js").read_text(), json.dumps(asked))))
    assert len(found) == len(GRID)
    for job, (interval, goodput, without, *others, duration) in zip(GRID, found, strict=True):
        best = cost.best_interval(job)
        assert float(str(interval).replace("infinite", "inf")) == pytest.approx(best, rel=1e-9), job
        assert goodput == pytest.approx(cost.goodput(job, best), rel=1e-9, abs=1e-12), job
        assert without == pytest.approx(cost.goodput(job, math.inf), rel=1e-9, abs=1e-12), job
        after_notice, after_kill = cost.kept(job, best) if job.rate * (1 - job.noticed) else (0, 0)
        lost = after_notice - after_kill
        expected = [job.write, job.away, job.pause, lost, cost.best_memory_interval(job), cost.fallback(job)]
        known = [float(str(each).replace("infinite", "inf")) for each in others]
        assert known == pytest.approx(expected, rel=1e-6), job
        assert duration == cost.duration(best), job


def test_the_calculator_starts_from_the_same_values() -> None:
    script = (ROOT / "docs" / "cost.js").read_text()
    presets = json.loads(
        evaluated(f"(() => {{ {script}\n return JSON.stringify(preemptionCost.presets); }})()")
    )
    defaults = as_on_the_page(Job())
    names = {field.name for field in fields(Job)}
    for preset, job in zip(presets.values(), (Job(), cost.LLAMA_3), strict=True):
        assert set(preset) <= names
        assert {**defaults, **preset} == pytest.approx(
            {**as_on_the_page(job), "noticed": preset.get("noticed", 0.9), "slowdown": 0.05}
        )


@pytest.mark.bench
def test_the_benchmark_prints_formula_and_simulation_side_by_side() -> None:
    script = BENCHMARKS / "failures.py"
    done = subprocess.run(
        [sys.executable, str(script), "--interruptions", "100"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Llama 3, 16,384 machines, memory" in done.stdout
