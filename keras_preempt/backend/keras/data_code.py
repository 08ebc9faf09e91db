"""Where Python code that makes data draws from a global random state: `random.random()`, `np.random.normal()`.

The code is only read, never run, and no code of the user's objects is called. Functions of installed libraries are not
followed, so finding nothing proves nothing.
"""

from __future__ import annotations

import functools
import gc
import inspect
import itertools
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import (
    BuiltinMethodType,
    CodeType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np

from keras_preempt.backend.bytecode import inner, instructions
from keras_preempt.backend.user_code import attributes, enclosed, is_a, is_installed

_GLOBAL_STATES = {id(draw.__self__) for draw in (random.random, np.random.rand)}  # type: ignore[attr-defined]
"""The ids of the objects whose methods are Python's and NumPy's functions that draw from a global state."""

_DRAW_THROUGH = {id(np.random.sample), id(np.random.ranf)}
"""The ids of functions that call such a method."""

_SEEDS = ("seed", "setstate", "set_state")
"""Methods that set such a state. Code that calls one may repeat what it draws."""

_NO_DRAWS = ("getstate", "get_state", "get_bit_generator", "set_bit_generator")

_NOTHING = ("POP_TOP", "PUSH_NULL", "SWAP")
"""Instructions that do not change which object was named last."""

_KEPT = ("BUILD_", "JUMP_", "RETURN_", "STORE_")
"""Beginnings of instructions that keep a function instead of calling it or passing it on."""

_LIBRARIES = ("tensorflow.", "keras.")

_OF_GRAIN = (
    "__getitem__",
    "__iter__",
    "__call__",
    "map",
    "map_with_index",
    "random_map",
    "filter",
    "flat_map",
)
"""The methods that Grain calls of a user's sources, datasets and transformations."""

_LONGEST = 100
"""A longer sequence in a Grain dataset is data, no list of transformations."""

_DEEPEST = 6  # How many objects of libraries may be nested around the user's function.
_MOST = 200  # How many functions are read.


@dataclass(frozen=True)
class _Code:
    """Code of the user's, and where it finds the names that it uses."""

    code: CodeType
    globals: dict[str, Any]
    closed: dict[str, Any]
    owner: _Instance | None


def global_draw(*behind: Any, owner: object = None) -> str:
    """Returns the line at which data draws from Python's or NumPy's global random state.

    Such as "augment (train.py:34)"; empty if no such line was found, or if the code also sets the state. `behind` are
    functions, methods, generators, or what a library has wrapped around them; `owner` is what they may use as `self`.
    """
    of = None if owner is None else _Instance(owner)
    left = [code for each in behind for code in _codes_of(each, of, _DEEPEST)]
    seen: set[CodeType] = set()
    found = ""
    while left and len(seen) < _MOST:
        read = left.pop(0)
        if read.code in seen:
            continue
        seen.add(read.code)
        for line, value, kind in _named_in(read.code, read, dict(read.closed)):
            if _is_global(value):
                if value.__name__ in _SEEDS:
                    return ""
                if not found and value.__name__ not in _NO_DRAWS:
                    found = f"{read.code.co_name} ({os.path.basename(read.code.co_filename)}:{line})"
            else:
                left += _codes_of(value, kind, 0)
    return found


def given_to_grain(data: Any) -> Iterator[Any]:
    """Yields the functions and methods of the user's that a Grain dataset or data loader calls; none of other data."""
    left, seen = [data] if _is_of_grain(data) else [], set()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        for name in _OF_GRAIN:
            if is_a(method := inspect.getattr_static(type(each), name, None), FunctionType):
                yield MethodType(method, each)
        if _is_of_grain(each):
            for value in attributes(each).values():
                several = type(value) in (list, tuple) and len(value) <= _LONGEST
                left += value if several else [value]
        elif is_a(each, FunctionType, MethodType, functools.partial):
            yield each


def _is_of_grain(value: Any) -> bool:
    return any(kind.__module__.startswith("grain.") for kind in type(value).__mro__)


def _codes_of(value: Any, owner: _Instance | None, depth: int) -> Iterator[_Code]:
    """Yields the user's code behind an object, through at most `depth` nested objects of libraries."""
    if is_a(value, MethodType):
        yield from _codes_of(value.__func__, _Instance(value.__self__), depth)
        if depth and type(value.__self__).__module__.startswith(_LIBRARIES):
            yield from _codes_of(value.__self__, None, depth - 1)
    elif is_a(value, FunctionType):
        function = inspect.unwrap(value)
        code, given, cells = function.__code__, function.__defaults__ or (), enclosed(function)
        if not is_installed(code.co_filename):
            names = code.co_varnames[: code.co_argcount]
            defaults = dict(zip(names[len(names) - len(given) :], given, strict=True))
            known = defaults | (function.__kwdefaults__ or {}) | cells
            yield _Code(code, function.__globals__, known, owner)
        elif depth:
            for each in cells.values():
                yield from _codes_of(each, None, depth - 1)
    elif is_a(value, GeneratorType):
        if value.gi_frame is not None and not is_installed(value.gi_code.co_filename):
            yield _Code(value.gi_code, value.gi_frame.f_globals, {}, owner)
    elif is_a(value, functools.partial):
        yield from _codes_of(value.func, owner, depth)
    elif depth and (
        type(value) is tuple
        or (type(value).__module__ in ("builtins", "itertools") and hasattr(type(value), "__next__"))
    ):
        for each in gc.get_referents(value):
            yield from _codes_of(each, owner, depth - 1)
    elif depth and type(value).__module__.startswith(_LIBRARIES):
        for each in attributes(value).values():
            yield from _codes_of(each, None, depth - 1)
    elif is_a(call := inspect.getattr_static(type(value), "__call__", None), FunctionType):
        yield from _codes_of(call, _Instance(value), depth)


def _is_global(value: Any) -> bool:
    """Whether a value is a function of Python's or NumPy's global random state."""
    if is_a(value, BuiltinMethodType, MethodType) and id(value.__self__) in _GLOBAL_STATES:
        return True
    return id(value) in _DRAW_THROUGH or value is np.random.seed


def _named_in(
    code: CodeType, read: _Code, local: dict[str, Any]
) -> Iterator[tuple[int, Any, _Instance | None]]:
    """Yields the objects that code names, as far as they are known without running it.

    Each comes with its line, and the object that it is a method of. `read` has the globals of the code, `local` the
    known values of its local variables.
    """
    if read.owner is not None and code is read.code and code.co_argcount:
        local[code.co_varnames[0]] = read.owner
    found: Any = None
    imported: Any = None
    done = [step for step in instructions(code) if step.does not in _NOTHING]
    for step, following in itertools.zip_longest(done, done[1:]):
        does, name = step.does, step.name
        owner = None
        if does == "LOAD_GLOBAL":
            found = local.get(name, read.globals.get(name))
        elif does in ("LOAD_FAST", "LOAD_DEREF"):
            found = local.get(name)
        elif does == "IMPORT_NAME":
            found = imported = sys.modules.get(name)
        elif does == "IMPORT_FROM":
            found = _attribute(imported, name)[0]
        elif does == "LOAD_ATTR":
            found, owner = _attribute(found, name)
        elif does.startswith("STORE_"):
            if is_a(found, ModuleType) and found.__name__.partition(".")[0] == name:
                found = sys.modules.get(name)  # "import numpy.random" binds numpy.
            local[name], found = found, None
        else:
            found = None
        # A function that is only assigned may be one of several; which one cannot be seen.
        named_only = following is not None and following.does.startswith(_KEPT)
        if found is not None and not (named_only and _is_global(found)):
            yield step.line, found, owner
    for each in inner(code):
        yield from _named_in(each, read, dict(local))


class _Instance:
    """The class and the attributes of an object. A class stands for one of its objects."""

    def __init__(self, of: Any) -> None:
        self.kind = of if is_a(of, type) else type(of)
        self.held = {} if self.kind is of else attributes(of)


def _attribute(value: Any, name: str) -> tuple[Any, _Instance | None]:
    """Returns an attribute of a module or an object, None if unknown; if it is a method, with the object."""
    if is_a(value, ModuleType):
        # It may stand for a module that is loaded later.
        loaded = sys.modules.get(str(vars(value).get("__name__"))) or value
        return vars(value).get(name, vars(loaded).get(name)), None
    if value is None:
        return None, None
    of = value if is_a(value, _Instance) else _Instance(value)
    found = inspect.getattr_static(of.kind, name, None)
    if is_a(found, staticmethod, classmethod):
        found = found.__func__
    if is_a(found, property):
        found = found.fget
    return (found, of) if is_a(found, FunctionType) else (of.held.get(name), None)
