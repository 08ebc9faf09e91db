"""The tests of the torch backend, in a process in which Keras runs on torch; and a fit there that is preempted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.backend.programs import python
from tests.backend.test_on_jax import FIT

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

ROOT = Path(__file__).parents[2]


def test_the_tests_of_the_backend_pass_and_none_is_left_out() -> None:
    plain = "-m pytest tests/backend/torch -q -p no:cacheprovider -p no:xdist"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    run = subprocess.run(
        [sys.executable, *plain.split()],
        cwd=ROOT,
        env={**environment, "KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert (counts := re.search(r"^(\d+) passed", run.stdout, re.M)), run.stdout[-600:]
    assert int(counts[1]) > 60


def test_where_tensorflow_and_jax_cannot_be_imported_a_fit_is_preempted_and_continues_with_the_same_bits(
    tmp_path: Path,
) -> None:
    def fit(*folders: Path) -> subprocess.CompletedProcess[str]:
        return python(
            FIT, *folders, without=("tensorflow", "jax"), KERAS_BACKEND="torch", OMP_NUM_THREADS="1"
        )

    def end(run: subprocess.CompletedProcess[str]) -> str:
        (line,) = [line for line in run.stdout.splitlines() if line.startswith("END ")]
        return line

    run = fit(tmp_path / "preempted", tmp_path / "undisturbed")
    assert run.returncode == 75, run.stderr
    assert "epoch 1, train batch 3" in run.stderr
    resumed = fit(tmp_path / "preempted")
    assert resumed.returncode == 0, resumed.stderr
    assert end(resumed) == end(run)
