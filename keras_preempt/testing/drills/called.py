"""Calls a function that is named by its module: ``python -m keras_preempt.testing.drills.called JSON``, in a worker.

The module is found where it was found in the process that asked for it: by its name, or as the same file.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

_MAIN = "__main__"


def described(function: Callable[..., object]) -> dict[str, Any]:
    """Returns what `call` needs to find a function in another process, as JSON.

    Raises:
        ValueError: It cannot be found there.
    """
    try:
        name, module = function.__qualname__, function.__module__
    except AttributeError:  # Such as functools.partial.
        name = module = "<nothing>"
    cure = (
        "Workers are processes of their own, which import the function by its name: define it with def at the top "
        "level of a module, and hand over what it needs as arguments of drill, or name a script."
    )
    if "<" in name:
        raise ValueError(f"Expected a function at the top level of a module. Received: {function!r}. {cure}")
    home = sys.modules.get(module)
    found: Any = home
    for part in name.split("."):
        found = getattr(found, part, None)
    if home is None or found is not function:
        raise ValueError(
            f"Expected a function that is what {module}.{name} means. Received: {function!r}, which is something "
            f"else, such as a method of an object, or what a decorator has wrapped. {cure}"
        )
    file = vars(home).get("__file__")
    if module == _MAIN and file is None:
        raise ValueError(
            f"Expected a function of a module that is a file. Received: {function!r}, of an interactive session. {cure}"
        )
    return {
        "module": module,
        "file": None if file is None else os.path.abspath(file),
        "name": name,
        "path": [os.path.abspath(entry) for entry in sys.path],
    }


def call(wanted: Mapping[str, Any]) -> None:
    """Calls the function that `described` has described, with "arguments"."""
    here = {os.path.abspath(entry) for entry in sys.path}
    sys.path += [entry for entry in wanted["path"] if entry not in here]
    function: Any = _module(wanted["module"], wanted["file"])
    for part in wanted["name"].split("."):
        function = getattr(function, part)
    function(*wanted["arguments"])


def _module(name: str, file: str | None) -> ModuleType:
    if name != _MAIN:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # It is there, and misses something itself.
        else:
            if file is None or os.path.abspath(module.__file__ or "") == file:
                return module
    # A script, or a test that pytest has imported without its folder on the path.
    assert file is not None
    alias = "drilled_main" if name == _MAIN else name
    spec = importlib.util.spec_from_file_location(alias, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    call(json.loads(sys.argv[1]))
