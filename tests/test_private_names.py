"""Private names of Keras and TensorFlow appear in backend/ only: a new release breaks no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import keras_preempt
from keras_preempt.backend import requirements
from keras_preempt.backend.keras import callbacks, names
from keras_preempt.backend.keras.names import PrivateName
from keras_preempt.backend.tensorflow import repairs

PACKAGE = Path(keras_preempt.__file__).parent
MODULES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))
OTHERS = [module for module in MODULES if not module.startswith("backend/")]
# Public in spite of their names: the second is how the storage client's documentation sets up its connections.
_DOCUMENTED = {"os._exit", "self._client._http"}
_PRIVATE_MODULE = re.compile(r"keras\.src|tensorflow\.python|tensorflow\.core")


def _borrowed(tree: ast.Module) -> list[str]:
    """Single-underscore attributes of objects other than self and cls that the module does not define."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                own.add(node.attr)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            own |= {target.id for target in targets if isinstance(target, ast.Name)}
    return [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        and node.attr not in own  # of another instance of a class in this very module
        and ast.unparse(node) not in _DOCUMENTED
    ]


def test_the_package_is_found() -> None:
    assert {"backend/keras/running_fit.py", "backend/tensorflow/datasets.py"} <= set(MODULES)
    assert len(OTHERS) > 30


@pytest.mark.parametrize("module", OTHERS)
def test_no_private_module_is_named(module: str) -> None:
    for number, line in enumerate((PACKAGE / module).read_text().splitlines(), 1):
        assert not _PRIVATE_MODULE.search(line), f"{module}:{number}: {line.strip()}"


@pytest.mark.parametrize("module", OTHERS)
def test_no_private_attribute_of_anything_else_is_used(module: str) -> None:
    assert _borrowed(ast.parse((PACKAGE / module).read_text())) == []


@pytest.mark.parametrize("module", OTHERS)
def test_no_private_attribute_is_reached_by_its_name_as_a_string(module: str) -> None:
    found = [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse((PACKAGE / module).read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "setattr", "hasattr", "delattr")
        and isinstance(node.args[1], ast.Constant)
        and str(node.args[1].value).startswith("_")
        and ast.unparse(node.args[0]) not in ("self", "cls")
    ]
    assert found == []


@pytest.mark.parametrize(
    "borrowing",
    [
        "model._initial_epoch",
        "a.b()._c",
        "import keras as k\nk.models._x = 1",
        "iterator._iterator_resource.x",
    ],
)
def test_the_search_finds_what_it_is_for(borrowing: str) -> None:
    assert _borrowed(ast.parse(borrowing))


# -- What can be told of an installed Keras before a fit -----------------------------------------------------


OF_KERAS = [module for module in MODULES if module.startswith("backend/keras/")]
ABOUT_KERAS = ("backend", "feed", "first_use", "multi_worker_fit", "replica_branches", "variables")
"""Those modules of the TensorFlow backend that reach into Keras and not into TensorFlow."""
TABLE = {name for attributes in names.ATTRIBUTES.values() for name in attributes}


@pytest.mark.parametrize("module", [*OF_KERAS, *(f"backend/tensorflow/{name}.py" for name in ABOUT_KERAS)])
def test_every_private_attribute_of_keras_is_in_the_table(module: str) -> None:
    borrowed = _borrowed(ast.parse((PACKAGE / module).read_text()))
    assert {line.rpartition(".")[2] for line in borrowed} <= TABLE


def test_every_private_function_of_keras_is_looked_for() -> None:
    defined = [value for value in vars(repairs).values() if isinstance(value, PrivateName)]
    assert sorted(map(str, defined)) == sorted(map(str, repairs.FUNCTIONS))


def test_every_private_attribute_that_is_state_of_a_callback_is_in_the_table() -> None:
    state = {name for attributes in callbacks.CALLBACK_STATE.values() for name in attributes}
    assert {name for name in state if name.startswith("_")} <= TABLE


def test_the_installed_keras_has_them_all() -> None:
    assert requirements.changed_names() == []


@pytest.mark.parametrize("name", sorted(TABLE))
def test_a_name_that_is_gone_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name in the table stands for a class that has it, so that a class without it is one that has changed."""
    (owner,) = [path for path, attributes in names.ATTRIBUTES.items() if name in attributes]
    monkeypatch.setattr(names, "_find", lambda path: type("Changed", (), {}) if path == owner else real(path))
    assert f"{owner.rpartition('.')[2]}.{name}" in requirements.changed_names()


real = names._find
