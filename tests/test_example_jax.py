"""The example does on JAX what its page says, and needs no TensorFlow for it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from keras_preempt.testing import drill
from tests.cluster.harness import QUIET_CPU, run_cluster

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed", allow_module_level=True)

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits.py"
ON_JAX = {**QUIET_CPU, "KERAS_BACKEND": "jax"}


@pytest.fixture
def without_tensorflow(tmp_path: Path) -> dict[str, str]:
    """Variables of a process that finds a TensorFlow which cannot be imported, as if there were none."""
    stand_in = tmp_path / "first" / "tensorflow"
    stand_in.mkdir(parents=True)
    (stand_in / "__init__.py").write_text("raise ImportError('There is no TensorFlow here.')")
    return {**ON_JAX, "PYTHONPATH": f"{stand_in.parent}:{Path(__file__).parents[1]}"}


def compiled_once(folder: Path) -> dict[str, str]:
    """As docs/jax.md recommends it: a restart does not compile again what an earlier start has compiled."""
    return {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}


@pytest.mark.parametrize("strategy", ["auto", pytest.param("mirrored", marks=pytest.mark.chaos)])
def test_example_trains_on_one_process_and_goes_on_where_it_stopped(tmp_path, without_tensorflow, strategy):
    arguments = [str(tmp_path / "run"), "--strategy", strategy, "--epochs"]
    first = run_cluster(EXAMPLE, 1, args=[*arguments, "1"], env=without_tensorflow, fresh=True).assert_ok()
    assert "44/44" in first.outputs[0]
    assert "validation accuracy:" in first.outputs[0]

    more = run_cluster(EXAMPLE, 1, args=[*arguments, "2"], env=without_tensorflow, fresh=True).assert_ok()
    assert "Continuing from step-00000044/00001-0000" in more.outputs[0]
    assert "Epoch 1/2" not in more.outputs[0]
    assert "Epoch 2/2" in more.outputs[0]


def test_example_on_two_processes_ends_with_the_same_bits_after_a_preemption(tmp_path):
    verdict = drill(
        EXAMPLE, tmp_path / "unused", "--epochs", 2,
        workers=2, preempt=1, seed=1, timeout=400, environment={**ON_JAX, **compiled_once(tmp_path)},
    )  # fmt: skip
    assert verdict.identical, verdict
    assert verdict.steps_lost == 0
