"""Above `backend/` nothing names a backend, and a backend that this package does not work with is refused."""

from __future__ import annotations

import ast
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import keras
import pytest

import keras_preempt
from keras_preempt.backend import pipelines, seam
from keras_preempt.backend.place import NO_WORKERS, Place
from tests.backend.programs import python

PACKAGE = Path(keras_preempt.__file__).parent
SHARED = ("backend/keras/", "backend/place", "backend/hung")
FILES = (path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.rglob("*.py")))
MODULES = [name for name in FILES if not name.startswith("backend/") or name.startswith(SHARED)]

NAMES_ONE = {
    "__init__.py": "names the homes of WorkerLost and enable_multi_worker_fit, which are TensorFlow's",
    "handler.py": "takes the place of a class of TensorFlow: it is given TensorFlow's own objects",
}
"""Modules that name a backend, and why."""

_OF_A_BACKEND = re.compile(
    r"(tensorflow|jax|jaxlib|torch|keras_preempt\.backend\.(tensorflow|jax|torch))(\.|\Z)"
)


def _named(source: str) -> list[str]:
    """The backends that a module imports, anywhere in it, or names in a string as something to be imported."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and str(node.value).startswith("keras_preempt.backend."):
            found.append(str(node.value))
    return [name for name in found if _OF_A_BACKEND.match(name)]


def test_only_a_backend_names_a_backend() -> None:
    named = {module: _named((PACKAGE / module).read_text()) for module in MODULES}
    assert {module: names for module, names in named.items() if names and module not in NAMES_ONE} == {}
    assert all(named[module] for module in NAMES_ONE), (
        "one names none any more: take it out of the exceptions"
    )


@pytest.mark.parametrize(
    "source",
    [
        "import tensorflow as tf",
        "def f():\n    from tensorflow.python.eager import context",
        "from keras_preempt.backend.tensorflow import errors",
        "from keras_preempt.backend import tensorflow",
        "if TYPE_CHECKING:\n    import keras_preempt.backend.tensorflow.errors",
        "import_module('keras_preempt.backend.tensorflow.errors')",
        "import jax.numpy as jnp",
    ],
)
def test_the_search_finds_what_it_is_for(source: str) -> None:
    assert _named(source)


def test_the_backend_is_the_one_that_keras_runs_on() -> None:
    assert keras.backend.backend() in seam._BACKENDS
    assert seam.backend() is seam.backend()
    assert set(seam.backend().versions()) == {"keras", "tensorflow", "numpy"}


def test_a_backend_that_overrides_nothing_is_one_process_that_trains_by_itself() -> None:
    third = seam.Backend()
    assert third.place(None) == Place()
    assert third.coordinator(Place()).members == 1
    assert not third.remote_workers()
    assert (third.replicas(None), third.replicas_differ(None), third.layout(None)) == (1, False, "")
    assert (third.job(), third.neighbours(None), third.gather(Place(), 1.0)) == (None, None, None)
    third.repair()()
    third.watch_first_use([], lambda variable: True)()
    assert third.errors.described(ValueError("no")) == (0, "no")
    assert not third.errors.says_a_loss(ValueError("no"), NO_WORKERS)
    variable = keras.Variable(1.0)
    assert seam.Variables().parts(None, variable) == (variable,)
    assert seam.Variables().pieces(variable) is None


def test_a_program_without_tensorflow_has_no_pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    assert pipelines.pipelines_of(object()) == []
    assert pipelines.iterator_state(object()) is None
    assert pipelines.never_has_state(object())
    assert not any(map(pipelines.keeps_an_order, pipelines.pipelines_of(object())))
    assert not any(map(pipelines.reshuffles_while_drawn, pipelines.pipelines_of(object())))
    assert list(pipelines.shuffle_buffers(object())) == []
    assert list(pipelines.sources(object())) == []


_CONSTRUCT = """
from keras_preempt.callback import PreemptionCallback
try:
    PreemptionCallback("run")
except ImportError as error:
    print(error)
from keras_preempt import PreemptionCallback
"""
_AS_IF = "import keras; keras.backend.backend = lambda: 'numpy'"


@pytest.mark.parametrize(
    "really", [pytest.param(False, marks=pytest.mark.chaos), True], ids=["as if", "really"]
)
def test_on_a_third_backend_the_callback_says_what_to_set(really: bool) -> None:
    if really and find_spec("jax") is None:
        pytest.skip("Keras' NumPy backend needs JAX, which is not installed")
    if really:
        run = python(_CONSTRUCT, KERAS_BACKEND="numpy")
    else:
        run = python(_AS_IF + _CONSTRUCT, KERAS_BACKEND="tensorflow")
    assert run.returncode == 1, run.stderr
    # Everything above the seam can be imported on any backend: the callback itself refuses, when it is made.
    (made,), last = run.stdout.splitlines(), run.stderr.strip().splitlines()[-1]
    for told in (f"ImportError: {made}", last):
        assert told.startswith(
            "ImportError: Expected Keras to run on the TensorFlow, the JAX or the torch backend."
        )
        assert "Received: 'numpy'." in told
        assert "KERAS_BACKEND to tensorflow, jax or torch" in told


def test_on_tensorflow_the_hooks_at_the_end_of_a_step_stay_in_the_main_thread(tmp_path: Path) -> None:
    # A save reads what callbacks have made of the last step: nothing waits there for hooks in other threads.
    callback = keras_preempt.PreemptionCallback(tmp_path / "run")
    assert not callback.async_safe
    assert keras.callbacks.CallbackList([callback])._async_train is False


def test_pipelines_has_the_names_that_it_declares_and_no_others() -> None:
    tree = ast.parse(Path(pipelines.__file__).read_text())
    declared = {name.name for node in ast.walk(tree) for name in getattr(node, "names", ()) if name.asname}
    assert declared == set(pipelines._WITHOUT_PIPELINES)
    assert not hasattr(pipelines, "cache_clear")
    assert all(callable(getattr(pipelines, name)) for name in declared)
