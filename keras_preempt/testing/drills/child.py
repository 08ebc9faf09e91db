"""The processes that `drill` starts: ``python -m keras_preempt.testing.drills.child ...``.

- ``command PARENT ARGUMENT...`` is ``keras-preempt ARGUMENT...``, and ends with the process PARENT: a test that is
  killed leaves no drill behind.
- ``call JSON`` is a worker that imports a function and calls it. The module is found where the process that asked for
  it found it: by its name, or as the same file.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_MAIN = "__main__"
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def call_command(function: Callable[..., object], arguments: Sequence[Any]) -> list[str]:
    """Returns the command that calls a function. Raises ValueError if another process cannot find it."""
    name = getattr(function, "__qualname__", "<nothing>")  # functools.partial has no name.
    module = getattr(function, "__module__", "")
    home = sys.modules.get(module)
    found: Any = home
    for part in name.split("."):
        found = getattr(found, part, None)
    file = None if home is None else vars(home).get("__file__")
    if "<" in name:
        expected = f"a function at the top level of a module. Received: {function!r}"
    elif home is None or found is not function:
        expected = (
            f"a function that is what {module}.{name} means. Received: {function!r}, which is something else, such as "
            "a method of an object, or what a decorator has wrapped"
        )
    elif module == _MAIN and file is None:
        expected = f"a function of a module that is a file. Received: {function!r}, of an interactive session"
    else:
        wanted = {
            "module": module,
            "file": None if file is None else os.path.abspath(file),
            "name": name,
            "path": [os.path.abspath(entry) for entry in sys.path],
            "arguments": list(arguments),
        }
        try:
            return [sys.executable, "-m", __name__, "call", json.dumps(wanted, allow_nan=False)]
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"Expected arguments for the function that JSON can hold. Received: {arguments!r} ({error}). Pass "
                "numbers, text, lists and dictionaries, and build the rest from them in the function."
            ) from None
    raise ValueError(
        f"Expected {expected}. Workers are separate processes, which import the function by its name: define it with "
        "def at the top level of a module, and pass what it needs as arguments of drill, or name a script."
    )


def _call(wanted: Mapping[str, Any]) -> None:
    here = {os.path.abspath(entry) for entry in sys.path}
    sys.path += [entry for entry in wanted["path"] if entry not in here]
    name, file = wanted["module"], wanted["file"]
    function: Any = None
    if name != _MAIN:
        try:
            function = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # The module exists, but an import inside it fails.
    if function is None or (file is not None and os.path.abspath(function.__file__ or "") != file):
        # A script, or a test that pytest has imported without its folder on the path.
        alias = "drilled_main" if name == _MAIN else name
        spec = importlib.util.spec_from_file_location(alias, file)
        assert spec is not None
        assert spec.loader is not None
        function = sys.modules[alias] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(function)
    for part in wanted["name"].split("."):
        function = getattr(function, part)
    function(*wanted["arguments"])


def _command(parent: int, arguments: list[str]) -> None:
    """Asks the kernel for a SIGTERM when the parent ends (Linux only), and becomes the command."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # It has ended already.
            sys.exit(128 + signal.SIGTERM)
    os.execv(sys.executable, [sys.executable, "-m", "keras_preempt", *arguments])


if __name__ == "__main__":
    if sys.argv[1] == "call":
        _call(json.loads(sys.argv[2]))
    else:
        _command(int(sys.argv[2]), sys.argv[3:])
