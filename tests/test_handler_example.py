"""The loops that TensorFlow documents run with our handler by another import, in each of their three forms."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_preempt import PreemptionCheckpointHandler

EXAMPLE = Path(__file__).parents[1] / "examples" / "custom_loop.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("custom_loop", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.EPOCHS, module.STEPS = 2, 6
    return module


@pytest.fixture
def _generic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("KERAS_PREEMPT_PLATFORM", "generic")
    monkeypatch.setenv("GCE_METADATA_IP", "127.0.0.1:9")
    earlier = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, earlier)  # TensorFlow's class leaves its own.


def train(example: ModuleType, directory: Path, handler_class: Any, api: str) -> list[np.ndarray]:
    """The weights at the end, of a process that is started."""
    keras.utils.set_random_seed(1)
    training = example.Training(str(directory), tf.distribute.get_strategy(), handler_class)
    training.run(api)
    return [np.array(variable) for variable in training.model.variables]


@pytest.mark.parametrize(
    "api",
    [pytest.param("run", marks=pytest.mark.chaos), pytest.param("save", marks=pytest.mark.chaos), "scope"],
)
@pytest.mark.usefixtures("_generic")
def test_a_documented_loop_ends_as_with_tensorflows_class_and_goes_on_after_a_notice(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: str
) -> None:
    theirs = tf.distribute.experimental.PreemptionCheckpointHandler
    undisturbed = train(example, tmp_path / "theirs", theirs, api)
    for step in (3, 8):
        monkeypatch.setenv("KERAS_PREEMPT_DRILL", f'{{"member": 0, "step": {step}}}')
        with pytest.raises(SystemExit) as left:
            train(example, tmp_path / "ours", PreemptionCheckpointHandler, api)
        assert left.value.code == 75
    monkeypatch.delenv("KERAS_PREEMPT_DRILL")
    ours = train(example, tmp_path / "ours", PreemptionCheckpointHandler, api)
    for ours_value, value in zip(ours, undisturbed, strict=True):
        np.testing.assert_array_equal(ours_value, value)
