"""The benchmarks on JAX run and print what they promise; of the figures, only what no machine changes is asserted."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from tests.benchmarked import BENCHMARKS, rows_of, run_benchmark

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed", allow_module_level=True)

with_orbax = pytest.mark.skipif(
    importlib.util.find_spec("orbax") is None, reason="Orbax is not installed: pip install orbax-checkpoint"
)


def test_hooks_and_window_are_measured_in_a_fit_of_two_processes_and_judged() -> None:
    result = run_benchmark("all.py", "--jax", "--quick", "--only", "jax_idle.py")
    printed, all_ratios = result.stdout.split("\n=== All")
    rows = rows_of(printed)
    ours, check = rows["with PreemptionCallback and _Last"], rows["reached_preemption_sync_point"]
    assert check[3] == "1.00", result.stdout + result.stderr
    assert float(ours[2]) > 0
    assert float(rows["with the window of steps"][2]) > 0
    told = re.search(r"hooks of a step on JAX, idle +reached_preemption_sync_point +([0-9.]+)", all_ratios)
    assert told is not None
    assert float(told.group(1)) == pytest.approx(float(ours[3]), abs=0.01)
    assert result.returncode == int("MISSED" in result.stdout)


@with_orbax
def test_notice_to_exit_runs_beside_orbax_and_ours_runs_no_extra_step() -> None:
    result = run_benchmark("jax_notice.py", "--runs", "1", "--width", "64")
    assert result.returncode == 0, result.stdout + result.stderr
    rows = rows_of(result.stdout)
    assert rows["2 workers: extra steps"][:2] == ["0", "0"]
    aligned, committed, gone = (
        float(rows[f"2 workers: notice -> {what}"][0])
        for what in ("aligned", "committed", "exit, last worker")
    )
    assert 0 < aligned < committed < gone
    assert "0 extra steps, 0 failed runs; Orbax': 0 failed runs" in result.stdout


@with_orbax
def test_save_measures_every_way_to_save_and_restore() -> None:
    result = run_benchmark("jax_save.py", "--gb", "0.01", "--repetitions", "1", "--no-aims")
    assert result.returncode == 0, result.stdout + result.stderr
    rows = rows_of(result.stdout)
    for column in ("save", "restore, cached", "restore, not cached"):
        for name in ("keras-preempt, notice", "keras-preempt, background", "Orbax, async"):
            assert float(rows[f"{column}: {name}"][0]) > 0
        assert rows[f"{column}: Orbax, sync"][3] == "1.00"
        assert rows[f"{column}: os.write / os.readv"][2] == "1.00"


def test_the_window_is_measured_beside_plain_keras_and_an_unbounded_queue() -> None:
    result = run_benchmark("jax_backlog.py", "--quick")
    assert result.returncode == 0, result.stdout + result.stderr
    rows = rows_of(result.stdout)
    for title in ("small steps", "steps of 5 ms"):
        assert rows[f"{title}: plain Keras"][1] == "1.00"
        assert rows[f"{title}: without it"][2] == "1.00"
    assert float(rows["with the window"][2]) > 0


@pytest.mark.parametrize("script", ["jax_save.py", "jax_notice.py"])
def test_a_benchmark_without_orbax_says_what_to_install(script: str, tmp_path: Path) -> None:
    absent = tmp_path / "absent.py"
    absent.write_text(
        "import sys, runpy\n"
        "sys.modules['orbax'] = None\n"
        f"sys.path.insert(0, {str(BENCHMARKS)!r})\n"
        f"runpy.run_path({str(BENCHMARKS / script)!r}, run_name='__main__')\n"
    )
    result = run_benchmark(str(absent))
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].endswith("Received: none. pip install orbax-checkpoint"), (
        result.stderr
    )


def test_every_benchmark_on_jax_is_run_by_all() -> None:
    sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "scripts")]
    import all as every

    scripts = {path.name for path in BENCHMARKS.glob("jax_*.py")} - {"jax_checkpointers.py"}
    assert {one.script for one in every.BENCHMARKS_ON_JAX} == scripts
