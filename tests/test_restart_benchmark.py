"""What a restart costs with standbys and without is measured: `benchmarks/restart.py`."""

from __future__ import annotations

import pytest

from tests.benchmarked import rows_of, run_benchmark

import restart  # isort: skip


@pytest.mark.bench
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_restart_is_shorter_with_a_standby_which_imports_nothing(backend: str) -> None:
    rows = rows_of(run_benchmark("restart.py", "--quick", "--backends", backend).stdout)
    without, with_one = rows["run"], rows["run --standby"]
    assert len(without) == len(with_one) == len(restart.PARTS) + 1
    imports = [*restart.PARTS].index("import")
    assert float(with_one[imports]) < 0.2 * float(without[imports])
    assert 0 < float(with_one[-1]) < float(without[-1])


@pytest.mark.bench
def test_what_a_saved_trace_could_bring_is_measured() -> None:
    """By `benchmarks/saved_trace.py`."""
    rows = rows_of(run_benchmark("saved_trace.py", "--runs", "1").stdout)
    assert all(
        float(load) < float(trace) for _, trace, load in (rows["4 dense layers"], rows["40 dense layers"])
    )


def test_the_parts_of_a_restart_sum_up_to_the_whole() -> None:
    marks = {"script": 11.0, "imported": 14.5, "built": 15.0, "training": 17.0, "step": 17.5}
    found = restart._split(10.75, marks)
    assert found.parts == {"start": 0.25, "import": 3.5, "build": 0.5, "resume": 2.0, "step": 0.5}
    assert found.whole == 6.75
