"""The benchmarks on JAX run and print what they promise; of the figures, only what no machine changes is asserted."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.benchmarked import BENCHMARKS, measured, rows_of, run_benchmark
from tests.test_benchmarks import no_extra_step

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed", allow_module_level=True)

with_orbax = pytest.mark.skipif(
    importlib.util.find_spec("orbax") is None, reason="Orbax is not installed: pip install orbax-checkpoint"
)


@pytest.mark.bench
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


@pytest.mark.bench
@with_orbax
def test_notice_to_exit_runs_beside_orbax_and_ours_runs_no_extra_step() -> None:
    no_extra_step("jax_notice.py", "Orbax'", "--width", "64")


@pytest.mark.bench
@with_orbax
def test_save_measures_every_way_to_save_and_restore() -> None:
    rows = measured("jax_save.py", "--gb", "0.01", "--repetitions", "1", "--no-aims")
    for column in ("save", "restore, cached", "restore, not cached"):
        for name in ("keras-preempt, notice", "keras-preempt, background", "Orbax, async"):
            assert float(rows[f"{column}: {name}"][0]) > 0
        assert rows[f"{column}: Orbax, sync"][3] == "1.00"
        assert rows[f"{column}: os.write / os.readv"][2] == "1.00"


@pytest.mark.bench
def test_the_window_is_measured_beside_plain_keras_and_an_unbounded_queue() -> None:
    rows = measured("jax_backlog.py", "--quick")
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
    result = run_benchmark(str(absent), fails=True)
    assert result.stderr.splitlines()[-1].endswith("Received: none. pip install orbax-checkpoint"), (
        result.stderr
    )


def test_every_benchmark_on_jax_is_run_by_all() -> None:
    import all as every

    scripts = {path.name for path in BENCHMARKS.glob("jax_*.py")} - {"jax_checkpointers.py"}
    assert {one.script for one in every.BENCHMARKS_ON_JAX} == scripts
