"""Whether Python code that no graph was made of yet may draw what a restart does not repeat.

It is only looked at, not run. What it hides behind other names is found in the graph, when there is one.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

_DRAWING = {"random", "numpy_function", "py_function", "py_func"}
"""Names of TensorFlow's and NumPy's modules and functions that draw, or run Python code that may."""

_OF_KERAS = ("keras.", "tensorflow.python.", "numpy.")
"""Whose functions are not looked into: they draw only what they are asked to draw."""


def may_draw(function: Any, owner: type) -> bool:
    """Whether a function, or one of the user's that it names, refers to random numbers outside of Keras.

    Args:
        function: The function.
        owner: The class whose methods it may call.
    """
    return any(_draws(each) for each in _reachable(function, owner, set()))


def _reachable(function: Any, owner: type, seen: set[CodeType]) -> Iterator[FunctionType]:
    """Yields a function and those that it names: methods of its class, and functions of its module."""
    function = inspect.unwrap(function.__func__ if isinstance(function, MethodType) else function)
    if not isinstance(function, FunctionType) or function.__code__ in seen:
        return
    if f"{function.__module__}.".startswith(_OF_KERAS):
        return
    seen.add(function.__code__)
    yield function
    for name in _names(function.__code__):
        for found in (getattr(owner, name, None), function.__globals__.get(name)):
            yield from _reachable(found, owner, seen)


def _names(code: CodeType) -> set[str]:
    """Returns the names of globals and attributes in a function and in those that are defined in it."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _modules(code: CodeType) -> set[tuple[str, bool]]:
    """Returns the globals that a function, or one that is defined in it, reads or imports; and whether it imports."""
    found = {
        (str(instruction.argval), instruction.opname == "IMPORT_NAME")
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "IMPORT_NAME")
    }
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return found.union(*map(_modules, inner))


def _draws(function: FunctionType) -> bool:
    names = _names(function.__code__)
    closed = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    values = [cell.cell_contents for _, cell in closed]
    for name, imports in _modules(function.__code__):
        values.append((sys.modules if imports else function.__globals__).get(name))
    for value in values:
        if isinstance(value, ModuleType):
            root, _, rest = value.__name__.partition(".")
            if root == "random" or (root in ("tensorflow", "numpy") and "random" in rest):
                return True
            if root in ("tensorflow", "numpy") and names & _DRAWING:
                return True
        elif str(getattr(value, "__module__", "")).startswith(("tensorflow.", "numpy.")) and (
            "random" in str(getattr(value, "__module__", "")) or getattr(value, "__name__", "") in _DRAWING
        ):
            return True
    return False
