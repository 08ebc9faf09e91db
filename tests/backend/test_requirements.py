"""What is said where a backend is missing or Keras runs on something else; and what needs none."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

import keras
import pytest
import tensorflow as tf
from packaging.requirements import Requirement

from keras_preempt.backend import requirements, versions
from keras_preempt.backend.keras import running_fit
from keras_preempt.backend.keras.names import PrivateName
from keras_preempt.backend.tensorflow import repairs
from tests.backend.programs import python
from tests.versions import verify

EVERY_NAME = """
import keras_preempt
for name in ("PreemptionCallback", "TerminationConfig", "Preempted", "enable_multi_worker_fit"):
    try:
        getattr(keras_preempt, name)
    except ImportError as error:
        print(error)
"""


def test_with_no_backend_every_name_says_what_to_install() -> None:
    run = python(EVERY_NAME, without=("tensorflow", "jax", "torch"))
    told = run.stdout.splitlines()
    assert (run.returncode, len(told)) == (0, 4), run.stderr
    for line in told:
        assert line.startswith("Expected TensorFlow, JAX or torch to be installed. Received: none of them.")
        for part in ("tensorflow", "tpu", "jax", "torch"):
            assert f"pip install 'keras-preempt[{part}]'" in line
        assert "exclude each other" in line
        assert "KERAS_BACKEND=jax" in line


@pytest.mark.parametrize(
    ("backend", "missing", "instead"), [("tensorflow", "TensorFlow", "jax"), ("jax", "JAX", "tensorflow")]
)
def test_without_the_backend_that_keras_is_set_to_it_is_named_and_so_is_the_other(
    backend: str, missing: str, instead: str
) -> None:
    if not find_spec(instead):
        pytest.skip(f"{instead} is not installed")
    run = python("from keras_preempt import Preempted", without=(backend,), KERAS_BACKEND=backend)
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: Expected {missing} to be installed, which Keras is set to run on.")
    assert f"pip install 'keras-preempt[{backend}]'" in last
    assert f"set KERAS_BACKEND={instead}" in last


def test_something_else_that_keras_misses_is_told_as_it_is() -> None:
    run = python("from keras_preempt import Preempted", without=("absl",), KERAS_BACKEND="jax")
    assert run.returncode == 1
    assert run.stderr.strip().splitlines()[-1].startswith("ModuleNotFoundError: No module named 'absl'")


def test_a_third_backend_of_keras_is_refused_with_what_to_set(tmp_path: Path) -> None:
    stand_in = tmp_path / "keras"
    (stand_in / "backend").mkdir(parents=True)
    (stand_in / "__init__.py").write_text("from keras import backend\n")
    (stand_in / "backend" / "__init__.py").write_text("def backend():\n    return 'numpy'\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    run = python("from keras_preempt import PreemptionCallback", PYTHONPATH=path)
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert "Received: 'numpy'" in last
    assert "KERAS_BACKEND to tensorflow, jax or torch" in last
    assert "keras.json" in last


@pytest.mark.parametrize("without", [(), ("tensorflow", "jax", "keras")], ids=["installed", "missing"])
def test_what_trains_nothing_needs_neither_keras_nor_a_backend(without: tuple[str, ...]) -> None:
    program = """
import sys
import keras_preempt; keras_preempt.__version__; dir(keras_preempt)
import keras_preempt.cluster, keras_preempt.process.environment, keras_preempt.agreement.alignment
import keras_preempt.notices.signals, keras_preempt.notices.termination, keras_preempt.agreement.coordinator
import keras_preempt.checkpoint.reader, keras_preempt.checkpoint.commit
import keras_preempt.training.run.runtime, keras_preempt.training.start.startup, keras_preempt.report.events
from keras_preempt.cli.main import main
for arguments in (["--help"], ["run", "--help"], ["drill", "--help"], ["--version"]):
    assert main(arguments) == 0
assert not {"tensorflow", "jax", "keras"} & set(sys.modules), "it was imported"
"""
    run = python(program, without=without)
    assert run.returncode == 0, run.stderr


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    import keras_preempt

    with pytest.raises(AttributeError, match="no attribute 'PreemptCallback'"):
        _ = keras_preempt.PreemptCallback
    for name in keras_preempt.__all__:
        assert getattr(keras_preempt, name) is not None


@pytest.fixture
def told_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(requirements, "_warned", set())
    return caplog


def test_what_has_changed_in_a_newer_keras_is_named(
    monkeypatch: pytest.MonkeyPatch, told_nothing: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keras, "__version__", "99.1.0")
    gone = PrivateName(repairs.MAKE_FUNCTION.module, "TensorFlowTrainer._moved_elsewhere", ("self",))
    monkeypatch.setattr(repairs, "FUNCTIONS", (*repairs.FUNCTIONS, gone))
    monkeypatch.setattr(running_fit, "_FIT_LOCALS", (*running_fit._FIT_LOCALS, "renamed"))
    requirements.check_installed()
    (record,) = told_nothing.records
    assert "Changed in it: TensorFlowTrainer._moved_elsewhere, the variable renamed of fit." in record.message
    assert f"install keras=={versions.NEWEST_KERAS}" in record.message


MOVED = """
import sys, keras
keras.__version__ = "99.1.0"
for name in ("common.stateless_scope", "common.variables"):
    sys.modules["keras.src.backend." + name] = None  # As if it had moved: an import of it fails.
import keras_preempt
from keras_preempt.backend.seam import backend
keras_preempt.PreemptionCallback, backend()
"""


def test_a_private_module_that_has_moved_is_named_and_the_package_is_used_all_the_same() -> None:
    run = python(MOVED)
    assert run.returncode == 0, run.stderr
    (told,) = [line for line in run.stderr.splitlines() if "newest verified" in line]
    assert "Changed in it: in_stateless_scope, AutocastScope.__init__. What needs these will say so" in told


@pytest.mark.parametrize(
    ("package", "told", "newest"),
    [
        (keras, "Keras 99.1.0", versions.NEWEST_KERAS),
        (tf, "TensorFlow 99.0.0-rc1", versions.NEWEST_TENSORFLOW),
    ],
)
def test_what_is_newer_than_verified_is_told_of_once_and_used_if_it_is_as_it_was(
    package: object,
    told: str,
    newest: str,
    monkeypatch: pytest.MonkeyPatch,
    told_nothing: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(package, "__version__", told.split()[1])
    for _ in range(2):
        requirements.check_installed()
    (record,) = told_nothing.records
    assert record.message.startswith(f"{told} is newer than {newest}, the newest verified.")
    if package is keras:
        as_it_was = "All private functions that are relied upon are as they were, so it is used."
        assert record.message.endswith(as_it_was)


def test_verified_versions_are_told_of_by_nobody(
    monkeypatch: pytest.MonkeyPatch, told_nothing: pytest.LogCaptureFixture
) -> None:
    for kerases, tensorflow in (
        (versions.OLDEST_KERAS, versions.OLDEST_TENSORFLOW),
        (versions.NEWEST_KERAS, versions.NEWEST_TENSORFLOW),
    ):
        monkeypatch.setattr(keras, "__version__", kerases)
        monkeypatch.setattr(tf, "__version__", tensorflow)
        requirements.check_installed()
    assert told_nothing.records == []


@pytest.mark.parametrize(("package", "too_old"), [(keras, "3.7.0"), (keras, "2.15.0"), (tf, "2.15.1")])
def test_a_version_that_is_too_old_is_refused_with_what_to_install(
    package: object, too_old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "__version__", too_old)
    with pytest.raises(
        ImportError, match=rf"or later\. Received: {too_old}\. Install it with `pip install '"
    ):
        requirements.check_installed()


def stated_bounds(extra: str = "") -> dict[str, str]:
    """The lower bounds in pyproject.toml of what is imported, by package; or those of one extra alone."""
    # tomllib came with Python 3.11, and a quoted requirement is easily told from everything else in the file.
    text = (verify.REPOSITORY / "pyproject.toml").read_text()
    of = {
        name: next(line for line in text.splitlines() if line.startswith(f"{name} = ["))
        for name in ("jax", "torch")
    }
    rest = text.partition("dev = [")[0].replace(of["jax"], "")
    quoted = re.findall(r'"([a-z0-9-]+>=[0-9.]+)"', of.get(extra, rest))
    stated = [Requirement(line) for line in quoted]
    return {each.name: str(each.specifier).removeprefix(">=") for each in stated}


def test_the_stated_range_is_the_one_that_is_verified() -> None:
    stated, pinned = stated_bounds(), verify.pins("oldest")
    del stated["hatchling"]  # Builds; nothing imports it.
    del stated["tensorflow-tpu"]  # Takes the place of tensorflow; verified by itself.
    assert stated.keys() == pinned.keys()
    for package, version in stated.items():
        assert (pinned[package] + ".").startswith(version + "."), package
    assert (pinned["keras"], pinned["tensorflow"]) == (
        versions.OLDEST_KERAS,
        versions.OLDEST_TENSORFLOW,
    )
    newest = verify.pins("newest")
    assert newest == {"keras": versions.NEWEST_KERAS, "tensorflow": versions.NEWEST_TENSORFLOW}


def test_the_stated_range_on_jax_is_the_one_that_is_verified() -> None:
    assert (versions.OLDEST_JAX + ".").startswith(stated_bounds("jax").pop("jax") + ".")


def test_the_stated_range_on_torch_is_the_one_that_is_verified() -> None:
    assert stated_bounds("torch") == {"torch": versions.OLDEST_TORCH, "keras": versions.OLDEST_KERAS_ON_TORCH}
