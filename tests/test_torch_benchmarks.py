"""The benchmarks on torch run and print what they promise; of the figures, only what no machine changes is asserted."""

from __future__ import annotations

import importlib.util

import pytest

from tests.benchmarked import BENCHMARKS, rows_of, run_benchmark

with_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@pytest.mark.bench
@with_torch
def test_hooks_and_draws_are_measured_in_a_fit() -> None:
    rows = rows_of(run_benchmark("all.py", "--torch", "--quick", "--only", "torch_idle.py").stdout)
    assert float(rows["with PreemptionCallback and _Last"][2]) > 0
    assert rows["with one empty keras.callbacks.Callback"][3] == "1.00"
    assert float(rows["in a fit under the callback"][2]) > 0


@pytest.mark.bench
@with_torch
def test_the_first_step_is_measured_beside_plain_keras() -> None:
    rows = rows_of(run_benchmark("first_step.py", "--runs", "1", "--backend", "torch").stdout)
    assert all(float(rows[model][-1]) > 0 for model in ("built", "lazily built"))


def test_every_benchmark_on_torch_is_run_by_all() -> None:
    import all as every

    scripts = {path.name for path in BENCHMARKS.glob("torch_*.py")}
    assert {one.script for one in every.BENCHMARKS_ON_TORCH} == {*scripts, "first_step.py"}
