"""Private names of Keras and TensorFlow appear in two modules and in backend/ only: a new release breaks no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import keras_preempt

PACKAGE = Path(keras_preempt.__file__).parent
INTERNALS = {"keras_internals.py", "tensorflow_internals.py"}
MODULES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))
OTHERS = [module for module in MODULES if module not in INTERNALS and not module.startswith("backend/")]
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
    assert set(MODULES) >= INTERNALS
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
