"""Modules that the catalogue uses and does not import: each is imported when a job first needs something of it."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class Late(ModuleType):
    """Stands for a module; the package, which looks at what code uses, takes it for that one."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


keras, np, tf = Late("keras"), Late("numpy"), Late("tensorflow")
