"""Which code is the user's own, and not of an installed library."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from functools import cache


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
