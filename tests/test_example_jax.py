"""The example does on JAX what its page says, and needs no TensorFlow for it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from keras_preempt.testing import drill
from tests.cluster.harness import QUIET_CPU
from tests.test_example import EXAMPLE, assert_goes_on_where_it_stopped

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed", allow_module_level=True)

ON_JAX = {**QUIET_CPU, "KERAS_BACKEND": "jax"}


@pytest.fixture
def without_tensorflow(tmp_path: Path) -> dict[str, str]:
    """Variables of a process that finds a TensorFlow which cannot be imported, as if there were none."""
    stand_in = tmp_path / "first" / "tensorflow"
    stand_in.mkdir(parents=True)
    (stand_in / "__init__.py").write_text("raise ImportError('There is no TensorFlow here.')")
    return {**ON_JAX, "PYTHONPATH": f"{stand_in.parent}:{Path(__file__).parents[1]}"}


@pytest.mark.chaos
@pytest.mark.parametrize("strategy", ["auto", "mirrored"])
def test_example_trains_on_one_process_and_goes_on_where_it_stopped(tmp_path, without_tensorflow, strategy):
    arguments = (tmp_path / "run", "--strategy", strategy)
    assert_goes_on_where_it_stopped(*arguments, env=without_tensorflow, fresh=True)


@pytest.mark.docs
def test_example_on_two_processes_ends_with_the_same_bits_after_a_preemption(tmp_path, without_tensorflow):
    verdict = drill(
        EXAMPLE, tmp_path / "unused", "--epochs", 1, "--batch-size", 128,
        workers=2, preempt=1, seed=1, timeout=400, environment=without_tensorflow,
    )  # fmt: skip
    assert verdict.identical, verdict
    assert verdict.steps_lost == 0
