"""What is said where TensorFlow is missing or Keras runs on something else; and what needs neither."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_WITHOUT = """
import sys
for finder in list(sys.meta_path):
    def find(name, path=None, target=None, original=finder.find_spec):
        return None if name.split(".")[0] in {blocked!r} else original(name, path, target)
    finder.find_spec = find
"""


def python(program: str, *, without: tuple[str, ...] = (), **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in which the packages `without` are not installed."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", **env}
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT.format(blocked=without) + program],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )


@pytest.mark.parametrize(
    "name", ["PreemptionCallback", "TerminationConfig", "Preempted", "enable_multi_worker_fit"]
)
def test_without_tensorflow_every_name_says_what_to_install(name: str) -> None:
    run = python(f"from keras_preempt import {name}", without=("tensorflow",))
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: Expected TensorFlow to be installed.")
    assert "pip install 'keras-preempt[tensorflow]'" in last
    assert "pip install 'keras-preempt[tpu]'" in last
    assert "exclude each other" in last


def test_another_backend_of_keras_is_refused_with_what_to_set(tmp_path: Path) -> None:
    stand_in = tmp_path / "keras"
    (stand_in / "backend").mkdir(parents=True)
    (stand_in / "__init__.py").write_text("from keras import backend\n")
    (stand_in / "backend" / "__init__.py").write_text("def backend():\n    return 'jax'\n")
    run = python("from keras_preempt import PreemptionCallback", PYTHONPATH=str(tmp_path))
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert "Received: 'jax'" in last
    assert "KERAS_BACKEND=tensorflow" in last
    assert "keras.json" in last


@pytest.mark.parametrize(
    "program",
    [
        "import keras_preempt; keras_preempt.__version__; dir(keras_preempt)",
        "import keras_preempt.cli.main",
        "import keras_preempt.cluster, keras_preempt.environment, keras_preempt.alignment",
        "import keras_preempt.notices.signals, keras_preempt.termination, keras_preempt.coordination",
        "import keras_preempt.checkpoint.reader, keras_preempt.checkpoint.commit",
        "import keras_preempt.runtime, keras_preempt.startup, keras_preempt.events",
    ],
)
def test_what_trains_nothing_needs_neither_tensorflow_nor_keras(program: str) -> None:
    run = python(program, without=("tensorflow", "keras"))
    assert run.returncode == 0, run.stderr


def test_the_command_line_explains_itself_without_tensorflow() -> None:
    program = """
import sys
from keras_preempt.cli.main import main
for arguments in (["--help"], ["run", "--help"], ["drill", "--help"], ["--version"]):
    assert main(arguments) == 0
assert not {"tensorflow", "keras"} & set(sys.modules), "it was imported"
"""
    run = python(program, without=("tensorflow", "keras"))
    assert run.returncode == 0, run.stderr


def test_importing_the_package_loads_neither_even_if_both_are_there() -> None:
    run = python(
        "import keras_preempt, keras_preempt.cli.main; assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    assert run.returncode == 0, run.stderr


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    import keras_preempt

    with pytest.raises(AttributeError, match="no attribute 'PreemptCallback'"):
        _ = keras_preempt.PreemptCallback
    for name in keras_preempt.__all__:
        assert getattr(keras_preempt, name) is not None
