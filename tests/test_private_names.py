"""Private names of Keras and TensorFlow appear in backend/ only: a new release breaks no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType

import keras
import pytest

import keras_preempt
from keras_preempt.backend import requirements
from keras_preempt.backend.keras import callbacks, model_parts, names
from keras_preempt.backend.keras.names import KerasInternalsError, PrivateName
from keras_preempt.backend.tensorflow import repairs
from keras_preempt.backend.tensorflow.first_use import FirstUse

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


@pytest.mark.parametrize("table", [names, repairs])
def test_every_private_function_of_keras_is_looked_for(table: ModuleType) -> None:
    defined = [value for value in vars(table).values() if isinstance(value, PrivateName)]
    assert defined
    assert sorted(map(str, defined)) == sorted(map(str, table.FUNCTIONS))


BACKEND = [module for module in MODULES if module.startswith("backend/")]
FUNCTIONS = (*names.FUNCTIONS, *repairs.FUNCTIONS)
_OF_KERAS = re.compile(r"keras\.src\b")


def _imported(tree: ast.Module) -> list[str]:
    """What import statements take of `keras.src`."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return [path for path in found if _OF_KERAS.match(path)]


def _spelled(tree: ast.Module) -> list[str]:
    """What else a module names of `keras.src`: as text, or through the package."""
    texts = [str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    reached = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return [path for path in (*texts, *reached) if _OF_KERAS.match(path)]


@pytest.mark.parametrize("module", BACKEND)
def test_private_modules_of_keras_are_reached_by_the_tables_alone(module: str) -> None:
    tree = ast.parse((PACKAGE / module).read_text())
    assert _imported(tree) == [], "where Keras has moved it, that is a bare ImportError"
    assert set(_spelled(tree)) <= {*names.ATTRIBUTES, *(function.module for function in FUNCTIONS)}


@pytest.mark.parametrize(
    "reaching",
    [
        "from keras.src.backend.common.stateless_scope import in_stateless_scope",
        "from keras.src import tree",
        "import keras.src.tree as t",
        "from keras import src",
        "import keras\nkeras.src.tree.map_structure(f, x)",
        "importlib.import_module('keras.src.tree')",
    ],
)
def test_the_search_for_private_modules_finds_what_it_is_for(reaching: str) -> None:
    tree = ast.parse(reaching)
    assert _imported(tree) or _spelled(tree)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.path)
def test_a_function_that_has_changed_is_told(function: PrivateName, monkeypatch: pytest.MonkeyPatch) -> None:
    as_it_is = function.find()
    # Keras goes on, and calls it in the meantime.
    monkeypatch.setattr(
        function.owner(), function.attribute, lambda *arguments, **named: as_it_is(*arguments, **named)
    )
    assert requirements.changed_names() == [function.path]


def test_what_needs_a_name_that_has_changed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = {
        names.GLOBAL_ATTRIBUTE: model_parts.global_seed_state,
        names.IN_STATELESS_SCOPE: lambda: FirstUse([], lambda variable: True),
        names.AUTOCAST_SCOPE: lambda: FirstUse([], lambda variable: True),
    }
    value = keras.Variable.value
    for name, use in needs.items():
        with monkeypatch.context() as patch:
            patch.setattr(name.owner(), name.attribute, lambda *arguments, **named: None)
            with pytest.raises(
                KerasInternalsError, match=rf"Expected {re.escape(str(name))}.*Install keras=="
            ):
                use()
    assert keras.Variable.value is value, "nothing is watched"


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
