"""Which code is the user's own, and what it refers to. No code of the objects themselves is called."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from types import FunctionType
from typing import Any


@cache
def _installed() -> tuple[str, ...]:
    folders = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    for module in ("tensorflow", "keras", "keras_preempt"):
        if (file := getattr(sys.modules.get(module), "__file__", None)) is not None:
            folders.add(os.path.dirname(file))
    folders |= set(site.getsitepackages()) if hasattr(site, "getsitepackages") else set()
    return tuple(os.path.join(folder, "") for folder in folders)


def is_installed(file: str) -> bool:
    """Whether a file of code belongs to Python, to Keras or TensorFlow, to this package, or to an installed library."""
    return file.startswith((*_installed(), "<")) or f"{os.sep}site-packages{os.sep}" in file


def is_of_keras(kind: type) -> bool:
    """Whether a class is Keras' own, or Python's."""
    return kind.__module__.partition(".")[0] in ("keras", "builtins")


def is_a(value: Any, *kinds: type) -> bool:
    """Like isinstance, but does not ask for `__class__`, which may load what a stand-in stands for."""
    return issubclass(type(value), kinds)


def attributes(value: Any) -> Mapping[str, Any]:
    """Returns the attributes of an object without calling its code."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def enclosed(function: FunctionType) -> dict[str, Any]:
    """Returns the variables of an enclosing function that a function uses."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # Not assigned yet.
            continue
    return found
