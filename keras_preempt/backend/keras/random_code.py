"""Whether Python code that is not traced yet may draw what a restart does not repeat.

The code is read, not run. What it calls by other names is found in the graph, once it is traced.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from keras_preempt.backend.bytecode import instructions_within, within

_DRAWING = {"random", "numpy_function", "py_function", "py_func"}
"""Names of TensorFlow's and NumPy's modules and functions that draw, or run Python code that may."""

_OF_KERAS = ("keras.", "tensorflow.python.", "numpy.")
"""Libraries whose functions are not read."""


def may_draw(function: Any, owner: type) -> bool:
    """Whether a function, or a function of the user's that it names, refers to random numbers outside of Keras.

    It may name methods of the class `owner`, and functions of its module.
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
    for name in {name for code in within(function.__code__) for name in code.co_names}:
        for found in (getattr(owner, name, None), function.__globals__.get(name)):
            yield from _reachable(found, owner, seen)


def _draws(function: FunctionType) -> bool:
    names = {name for code in within(function.__code__) for name in code.co_names}
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    for step in instructions_within(function.__code__):
        if step.does == "LOAD_GLOBAL":
            values.append(function.__globals__.get(step.name))
        elif step.does == "IMPORT_NAME":
            values.append(sys.modules.get(step.name))
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
