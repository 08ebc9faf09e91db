"""Private names of Keras, TensorFlow and JAX appear in backend/ only: a new release breaks no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import keras
import pytest

import keras_preempt
from keras_preempt.backend import requirements
from keras_preempt.backend.keras import callbacks, model_parts, names
from keras_preempt.backend.keras.first_use import FirstUse
from keras_preempt.backend.keras.names import KerasInternalsError, PrivateName
from keras_preempt.backend.tensorflow import repairs

PACKAGE = Path(keras_preempt.__file__).parent
MODULES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))
OTHERS = [module for module in MODULES if not module.startswith("backend/")]
# Public in spite of their names: the second is how the storage client's documentation sets up its connections. The
# others are Python's own: without them there is no standby, which tests/cluster/test_standby_scripts.py would see.
_DOCUMENTED = {"os._exit", "self._client._http", "sys._getframe", "os._Environ"}
_DOCUMENTED |= {"warnings._showwarnmsg_impl", "self._warnings._showwarnmsg_impl"}
# Python's own, without which the package does. tests/process/test_end_limit.py sees whether it is there.
_OF_PYTHON = {("threading", "_register_atexit")}
_PRIVATE_MODULE = re.compile(r"keras\.src|tensorflow\.python|tensorflow\.core|jax\._src|jaxlib\._jax")


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
    assert {
        "backend/keras/running_fit.py",
        "backend/tensorflow/datasets.py",
        "backend/jax/feed.py",
    } <= set(MODULES)
    assert len(OTHERS) > 30


def _reached_by_name(tree: ast.Module) -> list[str]:
    """Private attributes of other objects than self and cls that are named as a string."""
    return [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "setattr", "hasattr", "delattr")
        and isinstance(node.args[1], ast.Constant)
        and str(node.args[1].value).startswith("_")
        and not str(node.args[1].value).startswith("__")
        and ast.unparse(node.args[0]) not in ("self", "cls")
        and (ast.unparse(node.args[0]), node.args[1].value) not in _OF_PYTHON
    ]


@pytest.mark.parametrize("module", OTHERS)
def test_no_private_module_or_attribute_of_anything_else_is_used(module: str) -> None:
    text = (PACKAGE / module).read_text()
    assert [line for line in text.splitlines() if _PRIVATE_MODULE.search(line)] == []
    tree = ast.parse(text)
    assert _borrowed(tree) == []
    assert _reached_by_name(tree) == []


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
ABOUT_KERAS = ("backend", "feed", "multi_worker_fit", "replica_branches", "variables")
"""Those modules of the TensorFlow backend that reach into Keras and not into TensorFlow."""
ON_JAX = [module for module in MODULES if module.startswith("backend/jax/")]


ON_TORCH = [module for module in MODULES if module.startswith("backend/torch/")]


def distributed_table(name: str) -> tuple[str, ...]:
    """A table of names in backend/jax/distributed.py, which cannot be imported where Keras runs on TensorFlow."""
    (value,) = [
        node.value
        for node in ast.parse((PACKAGE / "backend/jax/distributed.py").read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    ]
    table: tuple[str, ...] = ast.literal_eval(value)
    return table


def _is_client(node: ast.expr) -> bool:
    return ast.unparse(node) in ("found", "self._client")


def _names_of(*tables: Mapping[str, tuple[str, ...]]) -> set[str]:
    return {name for table in tables for attributes in table.values() for name in attributes}


ANYWHERE = _names_of(names.ATTRIBUTES)
TABLES = {backend: ANYWHERE | _names_of(table) for backend, table in names.OF_TRAINERS.items()}


def _attributes(source: str) -> set[str]:
    """The private attributes that a module takes of other objects, also by name: getattr(x, "_y"), vars(x)["_y"]."""
    tree = ast.parse(source)
    found = {line.rpartition(".")[2] for line in _borrowed(tree)}
    for node in ast.walk(tree):
        texts: list[ast.expr] = []
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("attr", ".pop")):
            texts = node.args[:2]
        elif isinstance(node, ast.Subscript):
            texts = [node.slice]
        values = [str(text.value) for text in texts if isinstance(text, ast.Constant)]
        found |= {value for value in values if re.fullmatch(r"_[a-z]\w*", value)}
    return found


@pytest.mark.parametrize("module", OF_KERAS)
def test_every_private_attribute_of_keras_is_in_the_tables_of_all_backends(module: str) -> None:
    attributes = _attributes((PACKAGE / module).read_text())
    of_one = {"backend/keras/running_fit.py": {"_distribute_strategy"}}  # Asked with a default.
    for table in TABLES.values():
        assert attributes - of_one.get(module, set()) <= table


@pytest.mark.parametrize("module", [f"backend/tensorflow/{name}.py" for name in ABOUT_KERAS])
def test_every_private_attribute_of_keras_is_in_the_table_of_tensorflow(module: str) -> None:
    borrowed = _borrowed(ast.parse((PACKAGE / module).read_text()))
    assert {line.rpartition(".")[2] for line in borrowed} <= TABLES["tensorflow"]


@pytest.mark.parametrize("module", ON_JAX)
def test_every_private_attribute_of_keras_is_in_the_table_of_jax(module: str) -> None:
    """Of JAX itself no private attribute is used: its private state is reached by public names of a private module."""
    assert _attributes((PACKAGE / module).read_text()) <= TABLES["jax"]


@pytest.mark.parametrize("module", ON_TORCH)
def test_every_private_attribute_of_keras_and_torch_is_in_the_table_of_torch(module: str) -> None:
    assert _attributes((PACKAGE / module).read_text()) <= TABLES["torch"]


def test_private_modules_of_jax_are_reached_in_two_places_and_checked_there() -> None:
    """What compiled programs need may be missing: `tests/backend/jax/test_compiled_programs.py`."""
    reached = [module for module in BACKEND if "_src" in (PACKAGE / module).read_text() and module in ON_JAX]
    assert reached == ["backend/jax/compiled_programs.py", "backend/jax/distributed.py"]
    trees = [ast.parse((PACKAGE / module).read_text()) for module in reached]
    for tree in trees:
        assert _imported(tree, _OF_JAX) == [], "where JAX has moved it, that is a bare ImportError"
    tree = trees[1]
    used = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_client(node.value)
    }
    assert used
    assert used <= set(distributed_table("_METHODS")), "a method that is called and not looked for"


@pytest.mark.parametrize("table", [names, repairs])
def test_every_private_function_of_keras_is_looked_for(table: ModuleType) -> None:
    defined = [value for value in vars(table).values() if isinstance(value, PrivateName)]
    assert defined
    assert sorted(map(str, defined)) == sorted(map(str, table.FUNCTIONS))


BACKEND = [module for module in MODULES if module.startswith("backend/")]
FUNCTIONS = (*names.FUNCTIONS, *repairs.FUNCTIONS)
_OF_KERAS = re.compile(r"keras\.src\b")
_OF_JAX = re.compile(r"jax\._src\b|jaxlib\._")


def _imported(tree: ast.Module, private: re.Pattern[str] = _OF_KERAS) -> list[str]:
    """What import statements take of `keras.src`, or of other private modules."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return [path for path in found if private.match(path)]


def _spelled(tree: ast.Module) -> list[str]:
    """What else a module names of `keras.src`: as text, or through the package."""
    texts = [str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    reached = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return [path for path in (*texts, *reached) if _OF_KERAS.match(path)]


@pytest.mark.parametrize("module", BACKEND)
def test_private_modules_of_keras_are_reached_by_the_tables_alone(module: str) -> None:
    tree = ast.parse((PACKAGE / module).read_text())
    assert _imported(tree) == [], "where Keras has moved it, that is a bare ImportError"
    assert set(_spelled(tree)) <= {
        *names.ATTRIBUTES,
        *(path for table in names.OF_TRAINERS.values() for path in table),
        *(function.module for function in FUNCTIONS),
    }


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
    assert {name for name in state if name.startswith("_")} <= ANYWHERE


def test_the_installed_keras_has_them_all() -> None:
    assert requirements.changed_names() == []


@pytest.mark.parametrize("name", sorted(TABLES["tensorflow"]))
def test_a_name_that_is_gone_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name in the table stands for a class that has it, so that a class without it is one that has changed."""
    tables = {**names.ATTRIBUTES, **names.OF_TRAINERS["tensorflow"]}
    (owner,) = [path for path, attributes in tables.items() if name in attributes]
    monkeypatch.setattr(names, "_find", lambda path: type("Changed", (), {}) if path == owner else real(path))
    assert f"{owner.rpartition('.')[2]}.{name}" in requirements.changed_names()


real = names._find
