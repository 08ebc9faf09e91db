"""Random numbers of the storage client's own.

The client waits for random times between two tries, and separates the parts of an upload by a random text. It
draws both from Python's global generator, from whatever thread it runs in. That generator belongs to the training:
its state is saved and restored, and a run over a network with a hiccup must see the same numbers as one without.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from functools import cache
from types import ModuleType

_CLIENT = ("google.", "requests", "urllib3")
"""What the names of the client's modules begin with."""


def keep_apart() -> None:
    """Gives those modules of the client that are loaded by now a generator of their own."""
    own = _second_module()
    for name, module in list(sys.modules.items()):
        if (
            name.startswith(_CLIENT)
            and isinstance(module, ModuleType)
            and vars(module).get("random") is random
        ):
            module.random = own  # type: ignore[attr-defined]


@cache
def _second_module() -> ModuleType:
    """Python's module `random` once more: everything in it is there, and the hidden generator is another one."""
    spec = importlib.util.spec_from_file_location("keras_preempt_random", random.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
